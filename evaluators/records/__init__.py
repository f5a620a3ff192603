"""The evaluator's inputs and results as records, and the statistics of times. Every package may import them;
they import the standard library only.
"""
