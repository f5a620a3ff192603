"""The instruction sets of this machine, within the limit that the user sets for PyTorch.

`ATEN_CPU_CAPABILITY=avx2` excludes AVX-512 in PyTorch, and `default` all vectors beyond the architecture's
minimum. The kernels keep to the same limit.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from pathlib import Path

BEYOND: Mapping[str, tuple[str, ...]] = {"avx2": ("avx512", "amx"), "default": ("avx", "amx", "fma")}
"""By limit the prefixes of the instruction sets that it excludes."""


def has(feature: str) -> bool:
    """Whether kernels may use an instruction set, by its name in Linux; False if unknown."""
    return feature in processor_features() and not feature.startswith(BEYOND.get(_limit(), ()))


def registers() -> int:
    """The number of vector registers: 32 with AVX-512 and on arm64, otherwise 16."""
    return 32 if has("avx512f") or platform.machine() in ("aarch64", "arm64") else 16


def limiting_flags() -> list[str]:
    """The flags that keep `-march=native` within the limit."""
    if _limit() == "avx2" and "avx512f" in processor_features():
        return ["-mno-avx512f"]
    return ["-mno-avx"] if _limit() == "default" and "avx" in processor_features() else []


@functools.cache
def processor_features() -> frozenset[str]:
    """The words of Linux's description of the processor; empty on other systems."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()


def _limit() -> str:
    return os.environ.get("ATEN_CPU_CAPABILITY", "")
