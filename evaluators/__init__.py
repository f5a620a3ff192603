"""Building, checking and timing of untrusted kernels. Knows nothing of search."""
