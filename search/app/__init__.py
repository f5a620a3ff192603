"""Shared by the commands of `search`: run folders, observers, resuming, and overrides."""
