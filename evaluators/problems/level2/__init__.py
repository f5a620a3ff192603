"""References of fused operations."""
