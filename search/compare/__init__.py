"""The command `ideatree compare`: strategies, or anything that can be set, compared at equal budget."""
