"""References of what language models spend their time in: attention, experts, and layers of few bits."""
