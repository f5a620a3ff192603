"""The command `ideatree score`: judges a folder of kernels."""
