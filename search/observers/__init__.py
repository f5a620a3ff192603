"""Observers of a run: the console, plain lines, and Weights & Biases."""
