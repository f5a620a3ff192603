"""Where results that later runs can reuse are cached: builds, machine peaks, library kernel names."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`ideatree` in the user's cache folder (XDG Base Directory Specification). It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ideatree"
