"""Campaigns: many problems, and several arms, searched under one budget."""
