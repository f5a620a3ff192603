"""What watches a run: console, W&B."""
