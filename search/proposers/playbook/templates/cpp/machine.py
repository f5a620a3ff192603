"""What this machine's processor can do, within what the user lets PyTorch use of it.

`ATEN_CPU_CAPABILITY=avx2` keeps PyTorch from AVX-512, `default` from all vectors beyond the architecture's
minimum; the kernels keep to the same limit.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

BEYOND: Mapping[str, tuple[str, ...]] = {"avx2": ("avx512", "amx"), "default": ("avx", "amx", "fma")}
"""By limit the prefixes of the instruction sets that it rules out."""


def has(feature: str) -> bool:
    """Whether kernels may use an instruction set, by Linux's name for it; False where nobody says so."""
    return feature in processor_features() and not feature.startswith(BEYOND.get(_limit(), ()))


def registers() -> int:
    """How many vector registers there are: 32 with AVX-512 and on arm64, otherwise 16."""
    return 32 if has("avx512f") or platform.machine() in ("aarch64", "arm64") else 16


def limiting_flags() -> list[str]:
    """What `-march=native` needs after it to keep to the limit."""
    if _limit() == "avx2" and "avx512f" in processor_features():
        return ["-mno-avx512f"]
    return ["-mno-avx"] if _limit() == "default" and "avx" in processor_features() else []


@functools.cache
def processor_features() -> frozenset[str]:
    """The words of Linux's description of the processor; none where there is none."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()


def _limit() -> str:
    return os.environ.get("ATEN_CPU_CAPABILITY", "")
