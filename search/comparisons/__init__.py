"""Strategies compared: the searches of a comparison, their curves, and what the differences are worth."""
