"""Tree-search policies, one per file."""
