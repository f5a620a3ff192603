"""The reward policies, one per file. `configs/reward/` has a choice for each."""
