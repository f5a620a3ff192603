"""Calls to language models: what is asked and answered, the client that owns budget and retries, and providers."""
