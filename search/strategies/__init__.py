"""Tree-search policies, one a file."""
