"""Profiles a kernel apart from any measurement, and turns the profile into a diagnosis by fixed rules."""
