"""Where a machine keeps what the next run need not do again: builds, peaks, sums of library code."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`ideatree` in the user's cache folder (XDG Base Directory Specification); it may not be there yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ideatree"
