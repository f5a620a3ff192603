"""The command `ideatree harvest`: training data from runs and the kernel library."""
