"""How much a run may use: rounds, evaluations, seconds, and the calls, tokens and dollars of language models.

Limits are checked before work is submitted, not after.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal


class BudgetSpent(Exception):
    """A limit forbids more work; `limit` is its name."""

    def __init__(self, limit: str) -> None:
        super().__init__(f"budget.{limit} is used up")
        self.limit = limit


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The calls, tokens and US dollars of model calls, actual or at most."""

    calls: int = 1
    tokens: int
    dollars: Decimal

    def __add__(self, other: Cost) -> Cost:
        tokens, dollars = self.tokens + other.tokens, self.dollars + other.dollars
        return Cost(calls=self.calls + other.calls, tokens=tokens, dollars=dollars)

    def __sub__(self, other: Cost) -> Cost:
        tokens, dollars = self.tokens - other.tokens, self.dollars - other.dollars
        return Cost(calls=self.calls - other.calls, tokens=tokens, dollars=dollars)


NOTHING = Cost(calls=0, tokens=0, dollars=Decimal(0))


class Budget:
    """The limits of a run, and how much of each it has used. None means no limit.

    Each evaluation is reserved before it is submitted and settled when its verdict arrives. Each model call
    is reserved at its maximum possible cost, and settled at its actual cost. What is reserved and spent
    together never exceeds a limit.

    Args:
        rounds: Rounds to run.
        evaluations: Evaluations, not counting reused verdicts.
        seconds: Seconds of work from `start`, including the time that earlier processes of the run used, but
            not the time in which it stood still.
        calls: Calls to language models.
        tokens: Tokens of all calls, input and output.
        dollars: US dollars of all calls.
        clock: Returns seconds from any origin.

    Raises:
        ValueError: If a limit is not positive.
    """

    def __init__(
        self,
        *,
        rounds: int | None = None,
        evaluations: int | None = None,
        seconds: float | None = None,
        calls: int | None = None,
        tokens: int | None = None,
        dollars: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = {
            "rounds": rounds,
            "evaluations": evaluations,
            "seconds": seconds,
            "calls": calls,
            "tokens": tokens,
            "dollars": dollars,
        }
        for name, limit in limits.items():
            if limit is not None and not limit > 0:
                raise ValueError(f"budget.{name} is {limit}; it must be positive, or null for no limit")
        self.rounds, self.evaluations, self.seconds = rounds, evaluations, seconds
        self.calls, self.tokens = calls, tokens
        self.dollars = None if dollars is None else Decimal(str(dollars))
        self._clock = clock
        self.start()

    def start(self, *, used_s: float = 0.0, evaluations: int = 0, cost: Cost = NOTHING) -> None:
        """Starts the clock, given what the run has used before (nothing for a new run)."""
        self._origin_s = self._clock() - used_s
        self._stands_at_s: float | None = None
        self.spent, self.reserved = evaluations, 0
        self.cost_spent, self.cost_reserved = cost, NOTHING
        self._refused: str | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds of work on this run, including earlier processes."""
        now_s = self._clock() if self._stands_at_s is None else self._stands_at_s
        return now_s - self._origin_s

    def stand_still(self, still: bool) -> None:
        """Stops the clock while nothing but others can advance the run, or lets it go again."""
        if still and self._stands_at_s is None:
            self._stands_at_s = self._clock()
        elif not still and self._stands_at_s is not None:
            self._origin_s += self._clock() - self._stands_at_s
            self._stands_at_s = None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the time is up, at least 0; None without a limit."""
        return None if self.seconds is None else max(0.0, self.seconds - self.elapsed_s)

    @property
    def timed_out(self) -> bool:
        """Whether the time is up."""
        return self.remaining_s == 0

    @property
    def available(self) -> int:
        """The number of evaluations that may be reserved now."""
        if self.timed_out:
            return 0
        if self.evaluations is None:
            return sys.maxsize
        return max(0, self.evaluations - self.spent - self.reserved)

    def reserve(self, n: int) -> int:
        """Reserves up to `n` evaluations; returns the number reserved."""
        granted = min(n, self.available)
        self.reserved += granted
        return granted

    def settle(self, *, spent: bool) -> None:
        """Ends a reservation. `spent` says whether its evaluation took place. Raises ValueError without
        one."""
        if self.reserved < 1:
            raise ValueError("settled an evaluation that was not reserved")
        self.reserved -= 1
        self.spent += spent

    def reserve_call(self, most: Cost, *, leaving: Cost = NOTHING) -> bool:
        """Reserves a model call at its maximum possible cost.

        Args:
            most: The maximum possible cost.
            leaving: For a call that the run can do without: the room to leave for other calls. Without that
                room the call is refused at once, and the run continues.

        Returns:
            False if there is no room for it now, but calls in flight may turn out cheaper and leave room.

        Raises:
            BudgetSpent: If there is no room and no call is in flight, or no room to leave.
        """
        if self.timed_out:
            raise BudgetSpent("seconds")
        limit = self._too_much(most + leaving)
        if limit is None:
            self.cost_reserved += most
            return True
        if leaving.calls:
            raise BudgetSpent(limit)
        if self.cost_reserved.calls:
            return False
        self._refused = limit
        raise BudgetSpent(limit)

    def settle_call(self, most: Cost, spent: Cost) -> None:
        """Ends the reservation of a call. Raises ValueError without one."""
        if self.cost_reserved.calls < 1:
            raise ValueError("settled a call that was not reserved")
        self.cost_reserved -= most
        self.cost_spent += spent

    def exhausted(self, rounds_closed: int) -> str | None:
        """The name of the limit that forbids another round; None if another round may start."""
        if self.rounds is not None and rounds_closed >= self.rounds:
            return "rounds"
        if self.evaluations is not None and self.spent >= self.evaluations:
            return "evaluations"
        return "seconds" if self.timed_out else self._refused

    def _too_much(self, most: Cost) -> str | None:
        """The limit that one more call could exceed."""
        after = self.cost_spent + self.cost_reserved + most
        for name in ("calls", "tokens", "dollars"):
            limit = getattr(self, name)
            if limit is not None and getattr(after, name) > limit:
                return name
        return None
