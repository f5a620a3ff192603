"""The command `ideatree run`: one search."""
