"""Processes, memory, files and the GPU's driver: nothing here knows of kernels."""
