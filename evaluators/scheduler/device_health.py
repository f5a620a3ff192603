"""Which devices are not to be trusted any more: pure bookkeeping, from what their evaluations tell.

A device is at fault for a failure when the kernel that failed there gets its verdict on another device: so no
kernel, however bad, can have devices taken out of use. A canary (a fixed small kernel of the evaluator's own,
timed before each candidate) shows a device that has become slow.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict

FAILURES = 2
SLOW_READINGS = 2
SLOWER = 1.25
FIRST_READINGS = 5


class DeviceHealth:
    """Devices are known by their numbers; each method answers why the device should be set aside, or ""."""

    def __init__(self) -> None:
        self._failures: Counter[int] = Counter()
        self._slow: Counter[int] = Counter()
        self._first_ms: defaultdict[int, list[float]] = defaultdict(list)
        self._models: dict[int, str] = {}

    def at_fault(self, device: int, reason: str) -> str:
        """Takes down a failure of the device's own: the second in a row is one too many."""
        self._failures[device] += 1
        return f"it failed {FAILURES} times in a row: {reason}" if self._failures[device] >= FAILURES else ""

    def worked(self, device: int, model: str, canary_ms: float | None) -> str:
        """Takes down a verdict, and the canary's time there where it was measured.

        A reading is slow when it is 25 % above the median of the device's own first five, or above that of
        its peers of the same `model`; the second slow one in a row is one too many.
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
        return f"its canary takes {canary_ms:.3g} ms where {expected_ms:.3g} ms are to be expected"

    def _expected_ms(self, device: int) -> list[float]:
        """By the device's own readings and by its peers', as far as there are enough of them."""
        medians = {
            each: statistics.median(first)
            for each, first in self._first_ms.items()
            if len(first) == FIRST_READINGS and self._models[each] == self._models[device]
        }
        own = [medians.pop(device)] if device in medians else []
        return own + ([statistics.median(medians.values())] if medians else [])
