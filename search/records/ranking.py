"""Which of several kernels is the fastest, given the uncertainty of their timings. Pure: kernel ids and
evaluations.

A kernel ranks by the lower end of its speedup's 95 % interval, because the largest of many noisy medians is
mostly the luckiest. Kernels that were measured against one another in one session are ordered by that
session: the faster one ranks before the other, and no later than the other would.
"""

from __future__ import annotations

import itertools
import operator
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.timing import MIN_PAIRS, interval, paired_speedup

LOWER_END, MEDIAN = "lower_end", "median"
RANKINGS = (LOWER_END, MEDIAN)
"""What a run ranks by. Older journals, from before there was a choice, rank by the median and compare
nothing, so that they resume and replay as they began."""

LEADERS_AT_MOST = 5
"""The number of kernels measured in one session; each turn has a block for each of them."""

SESSIONS_AT_MOST = 3
"""The number of sessions with the same kernels if the earlier ones do not settle their order."""

NARROW = 0.05
"""Half the width at which an interval around 1 is narrow enough: what is left does not justify another
session."""


@dataclass(frozen=True, kw_only=True)
class LeaderComparison:
    """Several kernels measured in alternating blocks of one session: their evaluations by kernel id. Timing
    samples of correct kernels with the same index belong to the same turn. Raises ValueError if the numbers
    of turns differ."""

    evaluations: Mapping[str, Evaluation]

    def __post_init__(self) -> None:
        turns = {len(each.timing.kernel_samples_ms) for each in self.evaluations.values() if each.timing}
        if len(turns) > 1:
            raise ValueError(f"kernels of one session must have equal numbers of turns, not {sorted(turns)}")

    @cached_property
    def found(self) -> Mapping[str, Evaluation]:
        """The evaluations that say something about their kernels, that is, without infrastructure errors."""
        return {kernel: each for kernel, each in self.evaluations.items() if each.status.is_of_the_kernel}

    def speedup(self, kernel: str, over: str) -> tuple[float, float, float] | None:
        """The speedup of `kernel` over another with its 95 % interval; None if this session did not time
        both, or in too few turns."""
        one, other = (self.found[each].timing if each in self.found else None for each in (kernel, over))
        if one is None or other is None or len(one.kernel_samples_ms) < MIN_PAIRS:
            return None
        return paired_speedup(one.kernel_samples_ms, other.kernel_samples_ms)


def unconfirmed(evaluation: Evaluation | None) -> str:
    """Why a final measurement does not confirm a kernel; "" if it does, that is, if the interval of its
    speedup over eager lies above 1.00. None means that there was no final measurement."""
    if evaluation is None:
        return "it was not measured again"
    if (timing := evaluation.timing) is None:
        return f"{evaluation.status.value} when measured again"
    interval = f"the interval [{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
    if timing.speedup_low > 1:
        return ""
    if timing.speedup_high < 1:
        return f"it is slower than eager: {interval} lies below 1.00"
    return f"{interval} {'is too wide' if timing.speedup_low < 0.005 else 'contains 1.00'}"


class Ranking:
    """The order of kernels, given the comparisons so far. Raises ValueError for an unknown `by`."""

    def __init__(self, by: str = LOWER_END) -> None:
        if by not in RANKINGS:
            raise ValueError(f"ranking is {by!r}; it must be one of {', '.join(RANKINGS)}")
        self.by = by
        self.comparisons: list[LeaderComparison] = []
        self._last: dict[str, LeaderComparison] = {}
        """By kernel id, the last comparison with a result for it."""
        self._ratios: dict[tuple[str, str], list[float]] = {}
        """For each ordered pair of kernels: the second one's time divided by the first one's, turn by turn,
        over all sessions that timed both."""
        self._call_ms: dict[tuple[str, str], float] = {}
        """For each pair of kernels, the call time of the faster one."""
        self._faster: dict[str, set[str]] = {}
        """By kernel id, the kernels that were faster, by the median of these ratios."""

    def add(self, comparison: LeaderComparison) -> None:
        """Adds the next comparison."""
        self.comparisons.append(comparison)
        self._last |= dict.fromkeys(comparison.found, comparison)
        timings = {
            kernel: each.timing for kernel, each in comparison.found.items() if each.timing is not None
        }
        for (one, own), (other, its) in itertools.permutations(timings.items(), 2):
            ratios = self._ratios.setdefault((one, other), [])
            ratios += map(operator.truediv, its.kernel_samples_ms, own.kernel_samples_ms)
            self._call_ms[one, other] = min(own.kernel_ms, its.kernel_ms)
            self._faster.setdefault(other, set()).discard(one)
            if ratios and statistics.median(ratios) > 1:
                self._faster[other].add(one)

    def evaluation(self, kernel: str, own: Evaluation) -> Evaluation:
        """The evaluation to rank a kernel by: the last comparison's if there is one, otherwise its own."""
        last = self._last.get(kernel)
        return own if last is None else last.found[kernel]

    def order(self, own: Mapping[str, Evaluation]) -> list[str]:
        """The correct kernels among these, fastest first; ties in the order of `own`."""
        speedups = self._rank_speedups(own)
        order = sorted(speedups, key=lambda each: -speedups[each])
        places = {kernel: place for place, kernel in enumerate(order)}
        seen: set[str] = set()
        ordered: list[str] = []

        def put(kernel: str) -> None:
            """Puts the faster kernels first, unless sessions contradict one another in a circle."""
            if kernel in seen:
                return
            seen.add(kernel)
            if faster := self._faster.get(kernel):
                for each in sorted(faster & places.keys(), key=places.__getitem__):
                    put(each)
            ordered.append(kernel)

        for kernel in places:
            put(kernel)
        return ordered

    def leaders(self, own: Mapping[str, Evaluation]) -> list[str]:
        """The kernels to measure against one another: the best, and those that may be faster, because their
        intervals reach the lower end of the best's and no faster one is told apart from them yet. At most
        `LEADERS_AT_MOST`; none if the best is clear or these were measured together `SESSIONS_AT_MOST`
        times."""
        order = self.order(own)
        if self.by != LOWER_END or not order:
            return []
        least, there = self._rank_speedups(own)[order[0]], set(order)
        leaders = order[:1]
        for kernel in order[1:]:
            timing = self.evaluation(kernel, own[kernel]).timing
            if timing is not None and timing.speedup_high >= least and not self._is_behind(kernel, there):
                leaders.append(kernel)
        leaders = leaders[:LEADERS_AT_MOST]
        sessions = sum(set(leaders) <= set(each.evaluations) for each in self.comparisons)
        return [] if len(leaders) < 2 or sessions >= SESSIONS_AT_MOST else leaders

    def speedup(self, kernel: str, over: str) -> tuple[float, float, float] | None:
        """The speedup of `kernel` over another with its 95 % interval, from all sessions that timed both;
        None if they had too few turns."""
        ratios = self._ratios.get((kernel, over), [])
        return interval(ratios, self._call_ms[kernel, over]) if len(ratios) >= MIN_PAIRS else None

    def _is_behind(self, kernel: str, there: set[str]) -> bool:
        """Whether one of these kernels is significantly faster, or faster by so little that it does not
        matter."""
        found = (self.speedup(faster, kernel) for faster in self._faster.get(kernel, set()) & there)
        return any(each is not None and (each[1] > 1 or each[2] - each[1] < 2 * NARROW) for each in found)

    def _rank_speedups(self, own: Mapping[str, Evaluation]) -> dict[str, float]:
        """The speedup that each correct kernel ranks by."""
        counts = {kernel: self.evaluation(kernel, each) for kernel, each in own.items()}
        correct = {kernel: each for kernel, each in counts.items() if each.status is Status.CORRECT}
        if self.by == MEDIAN:
            return {kernel: each.speedup for kernel, each in correct.items()}
        speedups = {kernel: each.speedup_low for kernel, each in correct.items()}
        compared = speedups.keys() & self._faster.keys()
        pairs = [(slow, fast) for slow in compared for fast in self._faster[slow] if fast in speedups]
        while behind := [(slow, fast) for slow, fast in pairs if speedups[fast] < speedups[slow]]:
            for slow, fast in behind:  # along chains of comparisons
                speedups[fast] = max(speedups[fast], speedups[slow])
        return speedups
