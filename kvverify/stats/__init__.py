"""Pure statistics over arrays."""
