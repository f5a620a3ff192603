"""References of single operations."""
