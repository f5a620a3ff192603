"""Shared by the library's commands."""
