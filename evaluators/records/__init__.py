"""What the evaluator takes and what it returns, as records, and the statistics of times. Standard library only at
import; every package may use them.
"""
