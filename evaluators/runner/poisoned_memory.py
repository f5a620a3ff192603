"""Fills free memory with numbers that show in any result, so that a kernel that reads uninitialised memory
does not find the zeros of a fresh process there."""

from __future__ import annotations

POISON = 0xFFFFFFFF_7B7B7B7B
"""Eight bytes. In float32 they are 1e36 and NaN, in the half types 6e4 and NaN, in float64 NaN. A maximum
ignores the NaN, and a product with zero the large number, but neither ignores both."""
BLOCKS = 4
"""Blocks of each size."""
EXPONENTS = range(9, 26)
"""Powers of two: the sizes of the blocks in bytes."""


def poison_memory(device: str) -> None:
    """Fills free blocks of every size that allocators reuse. The pages have PyTorch's usual size: huge ones
    (`MADV_HUGEPAGE`) take a third of the time, but they made a 0.16 ms kernel take 0.12 ms, and eager faster
    too."""
    import torch

    kept, value = [], POISON - 2**64
    for size in (2**exponent for exponent in EXPONENTS):
        kept += [torch.full((size // 8,), value, dtype=torch.int64, device=device) for _ in range(BLOCKS)]
