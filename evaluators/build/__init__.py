"""Candidates are built on CPU cores, before any device is held; builds are kept."""
