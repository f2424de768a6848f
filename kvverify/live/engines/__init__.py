"""Engine adapters, one module each, and the registry that finds the one a URL belongs to."""
