"""Strong kernels that outlive a run. Knows the evaluators' records only."""
