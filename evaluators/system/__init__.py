"""Processes, memory, files and the GPU driver. Nothing here knows about kernels."""
