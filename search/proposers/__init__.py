"""Where ideas and code come from: one file or folder a proposer."""
