"""What a process that runs a candidate may see and do."""
