"""Calls to language models: the client, which owns budget and retries, and the providers."""
