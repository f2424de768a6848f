"""Is the answer the same whichever tier served it? Arms, comparison, isolation, doctor."""
