"""What a row of training data is: one format a file."""
