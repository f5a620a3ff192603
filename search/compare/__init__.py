"""The command `ideatree compare`: strategies or other settings, compared at equal budget."""
