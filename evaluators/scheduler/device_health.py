"""Decides which devices can no longer be trusted, from the results of their evaluations. Pure.

A device is at fault for a failure if the kernel that failed there gets its verdict on another device, so no
kernel, however bad, can take devices out of use. A canary (a small fixed kernel of the evaluator, timed
before each candidate) reveals a device that has become slow.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict

FAILURES = 2
SLOW_READINGS = 2
SLOWER = 1.25
FIRST_READINGS = 5


class DeviceHealth:
    """Devices are identified by number. Each method returns why the device should be set aside, or ""."""

    def __init__(self) -> None:
        self._failures: Counter[int] = Counter()
        self._slow: Counter[int] = Counter()
        self._first_ms: defaultdict[int, list[float]] = defaultdict(list)
        self._models: dict[int, str] = {}

    def at_fault(self, device: int, reason: str) -> str:
        """Records a failure of the device; the second in a row sets it aside."""
        self._failures[device] += 1
        return f"it failed {FAILURES} times in a row: {reason}" if self._failures[device] >= FAILURES else ""

    def worked(self, device: int, model: str, canary_ms: float | None) -> str:
        """Records a verdict, and the canary's time if it was measured.

        A reading is slow if it is 25 % above the median of the device's first five readings, or above that of
        its peers of the same `model`. The second slow reading in a row sets the device aside.
        """
        self._failures[device] = 0
        if canary_ms is None:
            return ""
        self._models[device] = model
        first = self._first_ms[device]
        expected_ms = min(self._expected_ms(device), default=canary_ms)
        self._slow[device] = self._slow[device] + 1 if canary_ms > SLOWER * expected_ms else 0
        if len(first) < FIRST_READINGS:
            first.append(canary_ms)
        if self._slow[device] < SLOW_READINGS:
            return ""
        return f"its canary takes {canary_ms:.3g} ms; {expected_ms:.3g} ms were expected"

    def replaced(self, device: int) -> None:
        """Forgets the device: another has taken its place."""
        for known in (self._failures, self._slow, self._first_ms, self._models):
            known.pop(device, None)

    def _expected_ms(self, device: int) -> list[float]:
        """The medians of the device's own readings and of its peers', if there are enough of them."""
        medians = {
            each: statistics.median(first)
            for each, first in self._first_ms.items()
            if len(first) == FIRST_READINGS and self._models[each] == self._models[device]
        }
        own = [medians.pop(device)] if device in medians else []
        return own + ([statistics.median(medians.values())] if medians else [])
