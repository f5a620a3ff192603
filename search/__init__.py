"""Search for fast GPU kernels: ideas, variants, rounds."""
