"""What `python -m kernel_library.export` writes, one format a file."""
