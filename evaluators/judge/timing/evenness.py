"""Whether a kernel's calls, all on equal work, take about equally long. Pure.

A kernel's figure is a median, of calls on a CPU and of blocks, which the machine's hold-ups of single calls
do not touch. Work that comes in some calls only would not, either. What tells the two apart is the baseline,
whose blocks alternate with the kernel's: the machine holds up both alike. And on a CPU, who is held up waits
for a core, and who sleeps or works does not.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evaluators.records.timing import RESOLUTION_MS, Block

UNEVEN = "uneven calls"
"""The rule of which `Evenness.reason` speaks."""
EXCESSES = (0.5, 2.0, 8.0)
"""Times its median, and the clock's noise, that a slow call takes longer: each is tried, since a busy machine
adds a little to many calls."""
SURE, LIKELY, OPEN = 1e-3, 1e-2, 0.3
"""How probable it may be that so many of the slow calls are the kernel's by chance: to reject it, to time it
by its mean, and to sample on."""
FEWEST_BLOCKS = 3
"""With slow calls: a hold-up of the machine's may be as long as a block."""
PLAIN_FACTOR = 2.0
"""Times the median that the mean is, waits for a core taken off, of a kernel that is rejected for it."""


@dataclass(frozen=True, kw_only=True)
class Evenness:
    """What the calls of a session show. `by_chance`: how probable it is that so many of the slow calls are
    the kernel's where it has no more than the baseline; 1 where they are in too few blocks."""

    calls: int
    slow: int
    slow_ms: float
    median_ms: float
    by_chance: float
    factor: float
    """The kernel's mean over its median, divided by the baseline's."""
    own_factor: float | None
    """The same of the kernel alone, the waits for a core taken off; None where those are not known."""

    @property
    def undecided(self) -> bool:
        """Whether more calls are needed to know."""
        return SURE < self.by_chance < OPEN

    @property
    def uneven(self) -> bool:
        """Whether the kernel's calls differ by its own doing, so that their mean counts."""
        return self.by_chance <= LIKELY and self.factor > 1

    @property
    def reason(self) -> str | None:
        """Why the kernel is rejected; None where it is not."""
        if self.by_chance > SURE or self.own_factor is None or self.own_factor < PLAIN_FACTOR:
            return None
        return f"{self.remark}; a kernel has to do a call's work in every call"

    @property
    def remark(self) -> str:
        """The same of one that is timed by its mean."""
        return (
            f"its calls are uneven on equal work: {self.slow} of {self.calls} took {self.slow_ms:.4g} ms in "
            f"the mean, the median is {self.median_ms:.4g} ms"
        )


def evenness(
    kernel: Sequence[Block], eager: Sequence[Block], *, overhead_ms: float, slack_ms: float
) -> Evenness:
    """Of blocks that have alternated. `overhead_ms` of each call is no work, and so much may be the clock's
    noise. A block that was timed as a whole counts as one call."""
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
    """How probable it is, if the slow ones fall on all calls alike, that of `slow` + `disturbed` so many or
    more fall on these `calls`, and not on the `others` (Fisher's exact test, one-sided)."""
    drawn = slow + disturbed
    ways = sum(math.comb(calls, n) * math.comb(others, drawn - n) for n in range(slow, min(drawn, calls) + 1))
    return ways / math.comb(calls + others, drawn)


def _calls_ms(block: Block, overhead_ms: float) -> list[float]:
    if not block.walls_ms:
        return [block.call_ms(block.calls * overhead_ms)]
    return [max(each - overhead_ms, RESOLUTION_MS) for each in block.walls_ms]
