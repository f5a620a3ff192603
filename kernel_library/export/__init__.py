"""The command `ideatree export`: writes kernels for use elsewhere, one format per file."""
