"""Packs a run into one file."""
