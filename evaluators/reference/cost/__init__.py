"""What a call has to compute and move, and how fast this machine could do that."""
