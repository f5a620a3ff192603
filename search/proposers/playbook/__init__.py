"""The built-in proposer: a catalogue of optimisation ideas for code templates. It needs no model and no
network."""
