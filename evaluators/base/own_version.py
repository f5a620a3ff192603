"""The version of Ideatree."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """The installed version; "not installed" if it is run from a clone."""
    try:
        return version("ideatree")
    except PackageNotFoundError:
        return "not installed"
