"""Providers of language models, one per file. A provider makes one call and reports how it ended."""
