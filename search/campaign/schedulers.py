"""Schedulers: pure functions that choose which search of a campaign gets the next slice of the budget."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

from search.campaign.slices import SearchProgress


class Scheduler(Protocol):
    """Chooses among the searches that may continue."""

    def choose(self, searches: Sequence[SearchProgress], running: Collection[str]) -> SearchProgress | None:
        """The search that gets the next slice, or None. `running`: keys of searches that have a slice
        already; none of them is chosen."""
        ...


class Equal:
    """The same share for each: the search with the fewest slices is next, in the campaign's order."""

    def choose(self, searches: Sequence[SearchProgress], running: Collection[str]) -> SearchProgress | None:
        """See `Scheduler`."""
        free = [each for each in searches if each.key not in running]
        return min(free, key=lambda each: len(each.slices), default=None)


class ExpectedGain:
    """The search whose next slice is expected to raise the logarithm of the speedup most, weighted by the
    suite.

    A search without a slice comes first. After that, the expected gain is the mean gain of the last `window`
    slices, plus an exploration bonus: `hope`, divided by 1 + the number of slices since the last gain, so
    that a stuck search is tried again, but less and less often. The expected gain never exceeds what the
    roofline allows. With a `target`, searches whose best kernel is below that speedup but can reach it count
    `boost` times, because they would add to fast_p at that speedup.
    """

    def __init__(
        self, *, window: int = 2, hope: float = 0.05, target: float | None = 1.0, boost: float = 3.0
    ) -> None:
        """Raises ValueError for numbers that are not positive."""
        for name, value in (("window", window), ("hope", hope), ("boost", boost)):
            if not value > 0:
                raise ValueError(f"scheduler.{name} is {value}; it must be positive")
        self._window, self._hope, self._target, self._boost = window, hope, target, boost

    def choose(self, searches: Sequence[SearchProgress], running: Collection[str]) -> SearchProgress | None:
        """See `Scheduler`."""
        free = [each for each in searches if each.key not in running]
        fresh = next((each for each in free if not each.slices), None)
        return fresh or max(free, key=self.expected, default=None)

    def expected(self, search: SearchProgress) -> float:
        """The value of the search's next slice: its expected gain, weighted."""
        worth = search.weight * self.gain(search)
        if self._target is None or search.speedup > self._target:
            return worth
        can = search.ceiling is None or search.ceiling > self._target
        return worth * (self._boost if can else 1.0)

    def gain(self, search: SearchProgress) -> float:
        """The expected gain of the search's next slice, in the logarithm of the speedup."""
        gains = search.gains
        recent = gains[-self._window :]
        idle = next((n for n, gain in enumerate(reversed(gains)) if gain > 0), len(gains))
        return min(sum(recent) / len(recent) + self._hope / (1 + idle), search.headroom)
