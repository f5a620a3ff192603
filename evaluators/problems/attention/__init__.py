"""References of attention in the forms that the other folders lack."""
