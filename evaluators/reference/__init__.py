"""References: their inputs, their right answers, and the least time a call can take."""
