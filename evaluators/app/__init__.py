"""What all commands share: the Hydra application, its config, `--help`, error messages, completion, and the options
about suites and devices. Only commands import it.
"""
