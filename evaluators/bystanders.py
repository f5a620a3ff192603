"""Whether other processes keep the cores busy, so that what is measured proves nothing."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from evaluators.process_tree import cpu_s

BUSY_SHARE = 0.3
"""Of all cores, that others have had."""
USER, NICE, SYSTEM, INTERRUPTS, STEAL = 0, 1, 2, slice(5, 7), 7
"""Places of the first line of `/proc/stat`."""


class Bystanders:
    """Everybody but some processes, from now on."""

    def __init__(self, ours: Iterable[int]) -> None:
        self._since, self._others_s = time.monotonic(), _others_s(ours)

    def busy(self, ours: Iterable[int]) -> bool:
        """Whether they have had more than their share of the cores; `ours`: who of us is there now."""
        seconds = (time.monotonic() - self._since) * (os.cpu_count() or 1)
        return _others_s(ours) - self._others_s > BUSY_SHARE * seconds


def _others_s(ours: Iterable[int]) -> float:
    """CPU seconds of all processes there ever were but these, and the children that they have buried."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = ticks[USER] + ticks[NICE] + ticks[SYSTEM] + sum(ticks[INTERRUPTS]) + ticks[STEAL]
        return busy / os.sysconf("SC_CLK_TCK") - cpu_s(ours)
    return 0.0
