"""Recorded runs that ship with the package, and the evaluator that repeats a recorded run's verdicts."""
