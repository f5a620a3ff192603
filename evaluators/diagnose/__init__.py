"""The command `ideatree diagnose`: says what keeps a kernel from being faster."""
