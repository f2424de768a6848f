"""Code that is loaded inside a serving process: digests and poison for its blocks, faults for its connector."""
