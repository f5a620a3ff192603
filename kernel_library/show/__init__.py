"""The command `ideatree show`: shows one kernel of the library."""
