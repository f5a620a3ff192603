"""Training data out of runs and the kernel library: what is read, what is kept, what is written."""
