"""Inputs and weights on which a kernel is checked: distributions, layouts, changes between calls."""
