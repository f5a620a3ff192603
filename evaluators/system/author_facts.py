"""Facts about this machine and its compilers for the authors of kernels."""

from __future__ import annotations

import functools
import os
import re
import subprocess
from pathlib import Path

from evaluators.system.installed_languages import installed_languages

CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
VECTOR = re.compile(
    r"\b(sse4_2|avx|avx2|fma|f16c|avx512(?:f|bw|vl|dq|_bf16|_fp16|_vnni)|avx_vnni|amx_(?:tile|int8|bf16|fp16)"
    r"|asimd|sve2?|bf16|i8mm)\b"
)
"""The flags of a CPU that matter for vector code."""


def cpu_name() -> str:
    """The CPU's name and its number of cores."""
    found = re.search(r"^model name\s*: (.+)$", _text(CPU_INFO), re.MULTILINE)
    return f"{found[1].strip() if found else 'CPU'}, {os.cpu_count()} cores"


def toolchain(device: str) -> dict[str, str]:
    """The compilers that kernels for `device` ("cpu" or "cuda") are built with, and for a CPU its vector
    instructions and caches. What cannot be found out is left out."""
    from torch.utils import cpp_extension

    compiler = str(cpp_extension.get_cxx_compiler())  # type: ignore[no-untyped-call]
    facts = {"compiler": _version(compiler, r"^(.+)$")}
    if device == "cuda":
        facts |= installed_languages()
        if cpp_extension.CUDA_HOME:
            facts["nvcc"] = _version(f"{cpp_extension.CUDA_HOME}/bin/nvcc", r"release ([\d.]+)")
    else:
        facts |= {"instructions": _instructions(), "caches": _caches()}
    return {name: value for name, value in facts.items() if value}


def _instructions() -> str:
    found = re.search(r"^(?:flags|Features)\s*: (.+)$", _text(CPU_INFO), re.MULTILINE)
    return ", ".join(dict.fromkeys(VECTOR.findall(found[1]))) if found else ""


def _caches() -> str:
    """Such as "L1 32K, L2 1024K, L3 32768K", those for data."""
    found = {}
    for index in sorted(CACHES.glob("index*")):
        if _text(index / "type").strip() != "Instruction":
            found[f"L{_text(index / 'level').strip()}"] = _text(index / "size").strip()
    return ", ".join(f"{level} {size}" for level, size in found.items())


@functools.cache
def _version(program: str, pattern: str) -> str:
    try:
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, ran.stdout, re.MULTILINE)
    return found[1].strip() if found else ""


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
