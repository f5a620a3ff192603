"""The command `ideatree prompt`: shows what a model would be asked."""
