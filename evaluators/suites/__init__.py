"""Suites: named collections of problems with weights. One file a source of problems; a suite itself is a YAML
file in `configs/suite/`."""
