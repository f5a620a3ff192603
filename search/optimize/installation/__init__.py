"""Kernels into a model: the folder `optimized/`, and what it runs."""
