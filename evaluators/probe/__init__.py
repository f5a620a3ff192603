"""The command `ideatree probe`: times a kernel whose outputs do not matter."""
