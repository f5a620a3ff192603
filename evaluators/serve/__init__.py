"""The command `python -m evaluators.serve`: a worker of a queue."""
