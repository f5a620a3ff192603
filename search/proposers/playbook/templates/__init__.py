"""Code templates, one file an operation."""
