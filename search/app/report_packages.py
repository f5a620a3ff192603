"""Whether the packages that reports need are installed."""

from importlib.util import find_spec

PACKAGES = ("pandas", "plotly")
"""What reports need in addition to Ideatree itself."""


def missing_packages() -> list[str]:
    """Those that a report needs and that are not installed."""
    return [name for name in PACKAGES if find_spec(name) is None]
