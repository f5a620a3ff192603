"""Whether the packages that reports need are installed."""

from importlib.util import find_spec

PACKAGES = ("pandas", "plotly")
"""Packages that only reports need."""


def missing_packages() -> list[str]:
    """The packages that a report needs but that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]
