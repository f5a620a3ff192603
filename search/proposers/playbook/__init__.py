"""The embedded proposer: a catalogue of optimisation ideas over code templates. No model, no network."""
