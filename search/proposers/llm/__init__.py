"""Ideas and code from language models: prompts, reading answers, and choosing among several models."""
