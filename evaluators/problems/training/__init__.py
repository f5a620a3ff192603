"""References of operations in the form in which models train them."""
