"""The command `ideatree trace`: records the operators that a model calls."""
