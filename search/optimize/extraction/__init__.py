"""Extracts problems from a model: graph captures its forward, fragments cuts out parts, references writes
them as problems (in plain Python by readable), with inputs distributed like the model's (distributions)."""
