"""A small copy on a GPU, whose time shows the state of the device independently of any kernel."""

from __future__ import annotations

import statistics
import time

ELEMENTS = 2**26


class Canary:
    """Owns the memory that is copied."""

    def __init__(self) -> None:
        import torch

        self._memory = torch.rand(ELEMENTS, device="cuda")

    def ms(self) -> float:
        """Time of several copies in ms, the median of several tries."""
        import torch

        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(4):
                self._memory.clone()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) * 1e3)
        return statistics.median(times[2:])
