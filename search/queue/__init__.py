"""The command `ideatree queue`: what waits in a queue of device operations."""
