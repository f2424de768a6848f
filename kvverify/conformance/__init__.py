"""Real quantisation kernels and serdes held against the reference codecs, and what each format costs at tensor level."""
