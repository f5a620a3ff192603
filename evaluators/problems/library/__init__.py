"""References of what the kernel library has seeds for, beside those of the levels."""
