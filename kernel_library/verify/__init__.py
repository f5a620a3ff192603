"""The command `ideatree verify`: measures the library's kernels on this machine."""
