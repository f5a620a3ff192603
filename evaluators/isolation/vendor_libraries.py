"""Removes vendor libraries (BLAS, DNN, FFT, …) from a process, for problems whose kernels must do the work
themselves.

torch has already loaded them, so their code in memory is overwritten with breakpoint instructions: a process
that calls it dies of SIGTRAP, whatever the process has patched before. The libraries' files are hidden so
that no copy can be loaded, and so is torch's compiler. torch's own code stays; attribution finds how much of
the work it did.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import re
from functools import cache
from pathlib import Path

from evaluators.system import elf

PATTERN = re.compile(
    r"/lib(cublas|cublasLt|cudnn\w*|cusparse|cusparseLt|cusolver|cufft)(_static\w*)?\.(so|a)\b"
)
PAGE = mmap.PAGESIZE
CHUNK = 2 * 2**20
BREAKPOINT = {"x86_64": b"\xcc", "aarch64": b"\x00\x00\x20\xd4"}
MAP_SHARED_FIXED = mmap.MAP_SHARED | 0x10


@cache
def loaded() -> tuple[tuple[int, int], ...]:
    """Where the libraries' code is in this process and those it forks: start and end of whole pages."""
    bases: dict[str, int] = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and PATTERN.search(fields[5]):
            bases.setdefault(fields[5], int(fields[0].partition("-")[0], 16))
    found = []
    for path, base in bases.items():
        start, size = _text(Path(path))
        low, high = -(-(base + start) // PAGE) * PAGE, (base + start + size) // PAGE * PAGE
        if high > low:
            found.append((low, high))
    return tuple(found)


@cache
def hidden() -> tuple[str, ...]:
    """Paths that must not be readable: the libraries' files (the loaded ones, those next to them and those
    where linkers look) and the folder of torch's compiler."""
    import torch

    folders = {
        Path(os.environ.get("CUDA_HOME", "/usr/local/cuda")) / "lib64",
        Path("/usr/lib/x86_64-linux-gnu"),
    }
    for line in Path("/proc/self/maps").read_text().splitlines():
        if PATTERN.search(line):
            folders.add(Path(line.split(maxsplit=5)[5]).parent)
            with contextlib.suppress(IndexError):  # other wheels: nvidia/*/lib
                folders.update(Path(line.split(maxsplit=5)[5]).parents[2].glob("*/lib"))
    candidates = (each for folder in folders if folder.is_dir() for each in folder.iterdir())
    found = {str(each.resolve()) for each in candidates if PATTERN.search(str(each))}
    return (*sorted(found), str(Path(torch.__file__).parent / "_inductor"))


def remove() -> None:
    """Overwrites the libraries' code in this process. Raises OSError."""
    if not loaded():
        return
    fill = BREAKPOINT[os.uname().machine]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fd = os.memfd_create("removed", os.MFD_CLOEXEC)
    try:
        os.write(fd, fill * (CHUNK // len(fill)))
        for low, high in loaded():
            for at in range(low, high, CHUNK):
                size = min(CHUNK, high - at)
                if libc.mmap(at, size, mmap.PROT_READ | mmap.PROT_EXEC, MAP_SHARED_FIXED, fd, 0) != at:
                    raise OSError(ctypes.get_errno(), "a library's code cannot be overwritten")
    finally:
        os.close(fd)


def _text(path: Path) -> tuple[int, int]:
    """Offset from the first mapping, and size, of the `.text` section of an ELF file."""
    first = min(each.address for each in elf.segments(path))
    for section in elf.sections(path):
        if section.name == ".text":
            return section.address - first // PAGE * PAGE, section.size
    return 0, 0
