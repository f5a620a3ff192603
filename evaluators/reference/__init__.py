"""What is to be computed: references, their inputs, right answers, and the least time they need."""
