"""How much a run may use: rounds, evaluations, seconds. Checked as work is submitted, not after."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


class Budget:
    """Limits of a run, and what it has used of them; None is no limit.

    An evaluation is reserved before it is submitted, and settled when its verdict is in: reserved and
    spent ones together never pass the limit. `clock` gives seconds from any origin; time counts from
    `start`, which also carries over what an earlier process of the same run has used.

    Raises ValueError for a limit that is not positive.
    """

    def __init__(
        self,
        *,
        rounds: int | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for name, limit in (("rounds", rounds), ("evaluations", evaluations), ("seconds", seconds)):
            if limit is not None and not limit > 0:
                raise ValueError(f"budget.{name} is {limit}; it must be positive, or null for no limit")
        self.rounds = rounds
        self.evaluations = evaluations
        self.seconds = seconds
        self.spent = 0
        self.reserved = 0
        self._clock = clock
        self._origin_s = clock()

    def start(self, *, used_s: float = 0.0, evaluations: int = 0) -> None:
        """Starts the clock, with what the run had used before (zero for a new one)."""
        self._origin_s = self._clock() - used_s
        self.spent = evaluations
        self.reserved = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds of work on this run, earlier processes included."""
        return self._clock() - self._origin_s

    @property
    def timed_out(self) -> bool:
        """Whether the seconds are used up."""
        return self.seconds is not None and self.elapsed_s >= self.seconds

    @property
    def available(self) -> int:
        """How many evaluations may be reserved now."""
        if self.timed_out:
            return 0
        if self.evaluations is None:
            return sys.maxsize
        return max(0, self.evaluations - self.spent - self.reserved)

    def reserve(self, n: int) -> int:
        """Reserves n evaluations, or as many as there are; returns how many."""
        granted = min(n, self.available)
        self.reserved += granted
        return granted

    def settle(self, *, spent: bool) -> None:
        """Ends a reservation: its evaluation took place or was not needed. Raises ValueError without one."""
        if self.reserved < 1:
            raise ValueError("an evaluation was settled that had not been reserved")
        self.reserved -= 1
        self.spent += spent

    def exhausted(self, rounds_closed: int) -> str | None:
        """The name of the limit that forbids another round, None when there may be one."""
        if self.rounds is not None and rounds_closed >= self.rounds:
            return "rounds"
        if self.evaluations is not None and self.spent >= self.evaluations:
            return "evaluations"
        return "seconds" if self.timed_out else None
