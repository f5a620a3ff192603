"""The command `ideatree audit`: which problems of a suite can judge kernels."""
