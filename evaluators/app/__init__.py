"""Shared by all commands: the Hydra application, its config, `--help`, error messages, completion, and the
options for suites and devices. Only commands import it.
"""
