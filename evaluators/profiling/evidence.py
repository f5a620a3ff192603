"""What checks return: the evidence for a bottleneck."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from evaluators.profiling.facts import ProfileFacts

MATTERS = 0.2
"""A kernel with a smaller share of the profiled time gets no finding."""
SHORT_US = 5.0
"""A launch itself takes about this long, so that a shorter kernel tells little but that it is short."""
STATIC_SHARE = 0.3
"""Estimate for what only the code shows."""
LOW_OCCUPANCY = 0.2
"""Occupancy that is too low to hide latencies, without knowing how busy the kernel is."""
TENSOR_TO_SCALAR = 8.0
"""How many times as fast tensor cores multiply, at least."""


@dataclass(frozen=True, kw_only=True)
class CheckEvidence:
    """What a check saw: numbers in words, the estimated part of the run time, and the kernel ("": the whole
    call)."""

    text: str
    share: float
    kernel: str = ""


Check = Callable[[ProfileFacts], CheckEvidence | None]


def worst(found: Iterable[CheckEvidence]) -> CheckEvidence | None:
    """The evidence of the most expensive bottleneck."""
    return max(found, key=lambda each: each.share, default=None)
