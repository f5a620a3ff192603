"""The command `ideatree list`: lists the library's kernels."""
