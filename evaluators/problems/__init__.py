"""The shipped references, one a file, in KernelBench's format."""
