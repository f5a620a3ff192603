"""Whether a kernel's calls, which all do the same work, take about equally long. Pure.

A kernel's time is a median, of calls on a CPU or of blocks, so that delays of single calls by the machine do
not affect it. Nor would work that is done in some calls only. The baseline distinguishes the two, because its
blocks alternate with the kernel's and the machine delays both alike. On a CPU, in addition, a delayed thread
waits for a core, and one that sleeps or works does not.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evaluators.records.timing import RESOLUTION_MS, Block

UNEVEN = "uneven calls"
"""The rule that `Evenness.reason` is about."""
EXCESSES = (0.5, 2.0, 8.0)
"""How much longer a slow call takes, in multiples of the median on top of the clock's noise. Each is tried,
because a busy machine delays many calls a little."""
SURE, LIKELY, OPEN = 1e-3, 1e-2, 0.3
"""Largest probability that the kernel has that number of slow calls by chance: to reject it, to time it by
its mean, and to keep sampling."""
FEWEST_BLOCKS = 3
"""Blocks that must contain slow calls, because one delay by the machine may be as long as a block."""
PLAIN_FACTOR = 2.0
"""Mean over median, without waits for a core, from which a kernel is rejected."""


@dataclass(frozen=True, kw_only=True)
class Evenness:
    """What the calls of a session show. `by_chance` is the probability that the kernel has that number of
    the slow calls if it has no more than the baseline; 1 if they are in too few blocks."""

    calls: int
    slow: int
    slow_ms: float
    median_ms: float
    by_chance: float
    factor: float
    """The kernel's mean over its median, divided by the baseline's."""
    own_factor: float | None
    """The same for the kernel alone, without waits for a core; None if those are unknown."""

    @property
    def undecided(self) -> bool:
        """Whether more calls are needed to decide."""
        return SURE < self.by_chance < OPEN

    @property
    def uneven(self) -> bool:
        """Whether the kernel itself makes its calls differ, so that their mean counts."""
        return self.by_chance <= LIKELY and self.factor > 1

    @property
    def reason(self) -> str | None:
        """Why the kernel is rejected; None if it is not."""
        if self.by_chance > SURE or self.own_factor is None or self.own_factor < PLAIN_FACTOR:
            return None
        return f"{self.remark}; a kernel must do a call's work in every call"

    @property
    def remark(self) -> str:
        """A remark on a kernel that is timed by its mean."""
        return (
            f"its calls are uneven on equal work: {self.slow} of {self.calls} took {self.slow_ms:.4g} ms on "
            f"average, the median is {self.median_ms:.4g} ms"
        )


def evenness(
    kernel: Sequence[Block], eager: Sequence[Block], *, overhead_ms: float, slack_ms: float
) -> Evenness:
    """The evenness of alternating blocks. `overhead_ms` of each call is not work, and `slack_ms` may be noise
    of the clock. A block that was timed as a whole counts as one call."""
    ours, theirs = ([_calls_ms(each, overhead_ms) for each in blocks] for blocks in (kernel, eager))
    times, others = list(itertools.chain(*ours)), list(itertools.chain(*theirs))
    median, other = statistics.median(times), statistics.median(others)
    chance, slow = 1.0, list[float]()
    for excess in EXCESSES:
        margin_ms = excess * median + slack_ms
        found = [each for each in times if each > median + margin_ms]
        disturbed = sum(each > other + margin_ms for each in others)
        blocks = sum(max(each) > median + margin_ms for each in ours)
        if blocks >= min(FEWEST_BLOCKS, len(ours)):
            by_chance = len(EXCESSES) * tail(len(times), len(others), len(found), disturbed)
            if by_chance < chance:
                chance, slow = by_chance, found
    waits = [each for block in kernel for each in block.waited_ms]
    own_factor = None
    if len(waits) == len(times):
        own = sum(max(ms - median - waited, 0.0) for ms, waited in zip(times, waits, strict=True))
        own_factor = 1 + own / len(times) / median
    return Evenness(
        calls=len(times),
        slow=len(slow),
        slow_ms=statistics.mean(slow) if slow else 0.0,
        median_ms=median,
        by_chance=chance,
        factor=(statistics.mean(times) / median) / (statistics.mean(others) / other),
        own_factor=own_factor,
    )


def tail(calls: int, others: int, slow: int, disturbed: int) -> float:
    """The probability that, if slow calls fall on all calls alike, `slow` or more of the `slow` + `disturbed`
    fall on these `calls` and the rest on the `others` (Fisher's exact test, one-sided). Not
    `scipy.stats.hypergeom`: it agrees to 1e-14, but importing it takes the judge process 1 s and a call 120
    instead of 20 µs."""
    drawn = slow + disturbed
    ways = sum(math.comb(calls, n) * math.comb(others, drawn - n) for n in range(slow, min(drawn, calls) + 1))
    return ways / math.comb(calls + others, drawn)


def _calls_ms(block: Block, overhead_ms: float) -> list[float]:
    if not block.walls_ms:
        return [block.call_ms(block.calls * overhead_ms)]
    return [max(each - overhead_ms, RESOLUTION_MS) for each in block.walls_ms]
