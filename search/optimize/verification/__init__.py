"""A model with kernels held against the model, and both timed."""
