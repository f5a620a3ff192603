"""Providers of language models, one file each: they make one call, and say what became of it."""
