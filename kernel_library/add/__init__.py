"""The command `ideatree add`: evaluates a kernel and adds it to the library."""
