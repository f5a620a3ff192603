"""The statistics of a measurement: block sizes, paired ratios, intervals, the audit of claims. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MIN_PAIRS = 6
"""Fewer pairs have no 95 % interval for their median: the range of n samples covers 1 - 2^(1-n)."""

CONFIDENCE = 0.965
"""Of one interval: with a look at each of `LOOKS`, the one that is reported still covers 95 % (simulated for
normal, exponential, lognormal, Laplace and uniform ratios; at 0.95 a look it covers 93 %)."""

AUDIT_SLACK_MS = 0.3
"""What a block may hide whatever the baseline says: the wake-up of a process, a message."""

LOOKS = (6, 8, 11, 15, 20, 27, 36, 48)
"""Pair counts at which sampling may stop. Few looks keep the interval honest under optional stopping."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """One block of calls: what the runner claimed for each (ms) and what the referee's clock saw in all."""

    claimed_ms: tuple[float, ...]
    wall_ms: float
    dropped: int

    @property
    def median_ms(self) -> float:
        """Median of the claims, the first `dropped` calls left out."""
        return statistics.median(self.claimed_ms[self.dropped :])

    @property
    def outside_ms(self) -> float:
        """Wall time that the claims do not account for: copies, messages, and anything hidden."""
        return self.wall_ms - sum(self.claimed_ms)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How long to measure. `precision` is the relative half-width of the interval at which to stop."""

    block_ms: float
    precision: float
    max_s: float

    def calls(self, call_ms: float, capacity: int) -> int:
        """Calls of a block for a module that takes `call_ms`, at most `capacity`; one where a call alone
        outlasts ten blocks."""
        if call_ms > 10 * self.block_ms:
            return 1
        return min(capacity, math.ceil(self.block_ms / max(call_ms, 1e-6)) + 1)

    def capacity(self, call_ms: float, most: int) -> int:
        """Calls that an arena should have room for where the baseline takes `call_ms`, at most `most`.

        Four blocks of the baseline's: a kernel four times as fast still fills a block, and a block of short
        calls still lasts long against what the audit cannot see.
        """
        return max(1, min(most, math.ceil(4 * self.block_ms / max(call_ms, 1e-6))))

    def enough(self, ratios: Sequence[float], elapsed_s: float) -> bool:
        """Whether to stop sampling after these paired ratios."""
        if len(ratios) < MIN_PAIRS:
            return False
        if elapsed_s > self.max_s or len(ratios) >= LOOKS[-1]:
            return True
        median, low, high = median_interval(ratios)
        return len(ratios) in LOOKS and (high - low) / 2 < self.precision * median


def dropped_calls(calls: int) -> int:
    """How many calls at the start of a block are not counted: the device wakes up, caches settle."""
    return min(3, max(calls // 4, 1 if calls > 1 else 0))


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Median and its distribution-free interval between order statistics (David & Nagaraja, Order
    Statistics, 7.1). Exact for any continuous distribution, where a bootstrap of few samples is too
    narrow. Raises ValueError for fewer than MIN_PAIRS values.
    """
    n = len(values)
    if n < MIN_PAIRS:
        raise ValueError(f"{n} samples; an interval needs at least {MIN_PAIRS}")
    ordered = sorted(values)
    tail, rank = 0.0, 0
    while (tail := tail + math.comb(n, rank) / 2**n) <= (1 - confidence) / 2:
        rank += 1
    # `rank` samples may be left out at each end
    return statistics.median(ordered), ordered[rank - 1], ordered[n - rank]


def audit(kernel: Sequence[Block], baseline: Sequence[Block]) -> str | None:
    """Compares the kernel's claims with the referee's clock; the reason when they cannot be true.

    The baseline, an honest module of the same shapes in the same harness, tells how much of a block's wall
    time lies outside the claims, per block or per call, and how much that varies. The kernel may have a
    quarter more and a quarter of its claim, before it is called a lie. Blocks must be long for this to
    bite: see `Plan.capacity`.
    """
    outside = [block.outside_ms for block in baseline]
    per_block = statistics.median(outside)
    per_call = statistics.median(block.outside_ms / len(block.claimed_ms) for block in baseline)
    spread = statistics.median(abs(each - per_block) for each in outside)
    hidden = []
    for block in kernel:
        honest = max(per_block, per_call * len(block.claimed_ms))
        allowed = 1.25 * honest + 3 * spread + AUDIT_SLACK_MS
        hidden.append(block.outside_ms - allowed - 0.25 * sum(block.claimed_ms))
    excess = statistics.median(hidden)
    if excess <= 0:
        return None
    calls = len(kernel[0].claimed_ms)
    return (
        f"the kernel claims {statistics.median(b.median_ms for b in kernel):.4g} ms a call, but the "
        f"referee's clock saw {excess:.4g} ms more than that allows in a block of {calls} calls"
    )
