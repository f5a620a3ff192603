"""Free memory in which huge numbers lie: what reads memory that nobody wrote shall not find the zeros of a
fresh process there."""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SOIL, SOILED = 0x7B, 4
"""A byte of which float32 and the half types make 1e36 and 6e4, and blocks of each size."""
LEAST_EXPONENT, MOST_EXPONENT = 9, 25
"""Of two: the sizes of the blocks, in bytes."""
HUGE_PAGE_BYTES = 2**21

_libc = ctypes.CDLL(None, use_errno=True)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def soil_memory(device: str) -> None:
    """Leaves them in free memory of every size that allocators hand out again."""
    import torch

    kept = []
    for size in (2**exponent for exponent in range(LEAST_EXPONENT, MOST_EXPONENT + 1)):
        for _ in range(SOILED):
            block = torch.empty((size,), dtype=torch.uint8, device=device)
            if device == "cpu":
                _ask_for_huge_pages(block)
            kept.append(block.fill_(SOIL))


def _ask_for_huge_pages(block: torch.Tensor) -> None:
    """Of Linux, for the whole ones in the block, before it is written: a quarter of a gigabyte in pages of
    4 KiB takes three times as long. Where it has none to give, the small ones do."""
    page_bytes = HUGE_PAGE_BYTES
    start = -(-block.data_ptr() // page_bytes) * page_bytes
    end = (block.data_ptr() + block.numel()) // page_bytes * page_bytes
    if end > start:
        _libc.madvise(start, end - start, mmap.MADV_HUGEPAGE)
