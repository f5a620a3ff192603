"""What a process with a candidate may see and do."""
