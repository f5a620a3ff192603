"""Whether machine code is a copy of a library's, in whatever file it lies.

A file's name tells little: whoever finds the few pages of a library that a computation needs can copy them to
a file of its own. So the code that a kernel was seen in is compared with the libraries', in pieces of 64
bytes, whatever their places (as rsync finds moved blocks, Tridgell & Mackerras 1996).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evaluators import elf, peek

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, np.dtype[Any]]

PIECE, WORD = 64, 8
RUN = 3
"""Pieces on end that make a copy: one by itself may be what any compiler makes of a common loop."""
REACH = RUN * PIECE
"""Bytes on either side of a place that tell whether it lies in a copy."""
PACKAGES = ("numpy*", "scipy*")
"""Beside torch, whose libraries are loaded: packages that a kernel finds, with libraries that compute."""
FACTORS = [0x9E3779B97F4A7C15 * (2 * n + 1) % 2**64 | 1 for n in range(1, 9)]


class LibraryCode:
    """The code of some files, to be found again."""

    def __init__(self, sums: Array) -> None:
        """`sums`: of all pieces, sorted."""
        self._sums = sums

    @classmethod
    def of(cls, files: Iterable[Path], folder: Path) -> LibraryCode:
        """That of these files, which takes seconds the first time; then it is kept in `folder`, in a file
        for these versions of them. A folder that cannot be written keeps nothing."""
        import numpy as np

        files = sorted(files)
        key = hashlib.sha256(repr([_version(each) for each in files]).encode()).hexdigest()[:16]
        kept = folder / f"library_code-{key}.npy"
        with contextlib.suppress(OSError, ValueError):
            return cls(np.load(kept, mmap_mode="r"))
        found = [sums for each in files for sums in _sums_of_file(each)]
        every = np.sort(np.concatenate(found)) if found else np.empty(0, np.uint64)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            written = folder / f".library_code-{os.getpid()}.npy"
            np.save(written, every)
            for old in folder.glob("library_code-*.npy"):
                old.unlink(missing_ok=True)
            written.rename(kept)
        return cls(every)

    def holds(self, code: bytes, place: int) -> bool:
        """Whether the byte of `code` at `place` lies in a stretch, of RUN pieces at least, that is in the
        libraries, too."""
        import numpy as np

        first = max(place - REACH + 1, 0)
        code = code[first : place + REACH]
        starts = min(place - first, len(code) - REACH) + 1
        if starts < 1 or not len(self._sums):
            return False
        pieces = np.lib.stride_tricks.sliding_window_view(np.frombuffer(code, np.uint8), PIECE)
        sums, telling = _sums(np.ascontiguousarray(pieces).view(np.uint64))
        at = np.minimum(np.searchsorted(self._sums, sums), len(self._sums) - 1)
        known = telling & (self._sums[at] == sums)
        return any(known[start : start + REACH : PIECE].all() for start in range(starts))


def installed(neutral: re.Pattern[str]) -> list[Path]:
    """The files whose code is a library's: what this process has loaded, which is torch and what that needs,
    and other packages that compute; but not what is `neutral`, a pattern of paths."""
    import torch

    found = {Path(each.path) for each in peek.code_regions(os.getpid()) if each.path.startswith("/")}
    packages = Path(torch.__file__).parents[1]
    for pattern in PACKAGES:
        for package in packages.glob(pattern):
            found.update(package.rglob("*.so*"))
    return [each for each in found if each.is_file() and not neutral.search(str(each))]


def _version(path: Path) -> tuple[str, int, int]:
    facts = path.stat()
    return str(path), facts.st_size, facts.st_mtime_ns


def _sums_of_file(path: Path) -> Iterator[Array]:
    import numpy as np

    for each in elf.segments(path):
        first, last = -(-each.offset // PIECE) * PIECE, (each.offset + each.size) // PIECE * PIECE
        if each.executable and last > first:
            data = np.memmap(path, mode="r", dtype=np.uint64, offset=first, shape=(last - first) // WORD)
            step = 2**20 // WORD
            for at in range(0, len(data), step):
                sums, telling = _sums(data[at : at + step].reshape(-1, PIECE // WORD))
                yield sums[telling]


def _sums(words: Array) -> tuple[Array, Array]:
    """A number for each row of eight words, and whether it says anything: padding does not."""
    import numpy as np

    factors = np.array(FACTORS, np.uint64)
    sums = words[:, 0] * factors[0]
    for column in range(1, len(factors)):
        sums += words[:, column] * factors[column]
    return sums, sums != words[:, 0] * factors.sum()
