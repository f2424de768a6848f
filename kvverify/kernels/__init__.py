"""Adapters over real KV copy kernels, one module each, imported only when asked for."""
