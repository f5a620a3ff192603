"""The command `ideatree evaluate`: judges one kernel."""
