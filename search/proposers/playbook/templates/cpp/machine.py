"""What this machine's processor can do."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def has(feature: str) -> bool:
    """Whether the processor has an instruction set by Linux's name for it; False where nobody says so."""
    try:
        words = Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False
    return feature in words
