"""Decides which kernel is built and measured when and where: a pool over hosts, local or on Ray."""
