"""A small copy of ours on a GPU: what it says of the device does not depend on any kernel."""

from __future__ import annotations

import statistics
import time

ELEMENTS = 2**26


class Canary:
    """Holds the memory that is copied."""

    def __init__(self) -> None:
        import torch

        self._memory = torch.rand(ELEMENTS, device="cuda")

    def ms(self) -> float:
        """Time of some copies, the median of several tries."""
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
