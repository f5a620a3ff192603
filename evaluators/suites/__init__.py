"""Suites: named collections of problems with weights. Each source of problems has a module here; a suite
itself is a YAML file in `configs/suite/`."""
