"""References of what models are trained with, in addition to those of the other folders."""
