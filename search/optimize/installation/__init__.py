"""Installs kernels into a model: package writes the folder `optimized/`, placement chooses the places;
runtime, kernel and graphs are copied into that folder."""
