"""Ideas and code from language models: prompts, what is read out of answers, and who is asked."""
