"""Free memory in which huge numbers lie: what reads memory that nobody wrote shall not find the zeros of a
fresh process there."""

from __future__ import annotations

SOIL, SOILED = 0x7B, 4
"""A byte of which float32 and the half types make 1e36 and 6e4, and blocks of each size."""
EXPONENTS = range(9, 26)
"""Of two: the sizes of the blocks, in bytes."""


def poison_memory(device: str) -> None:
    """Leaves them in free memory of every size that allocators hand out again. In pages of the size that
    PyTorch itself would have: in huge ones (`MADV_HUGEPAGE`) this takes a third of the time, but a kernel
    that was measured in 0.16 ms took 0.12 ms there, and eager, too, was faster than it is elsewhere."""
    import torch

    kept = []
    for size in (2**exponent for exponent in EXPONENTS):
        kept += [torch.full((size,), SOIL, dtype=torch.uint8, device=device) for _ in range(SOILED)]
