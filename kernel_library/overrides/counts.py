"""Counts the calls of kernels, and the fallbacks to the original operators by reason."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Count:
    """Calls of one operator with the same result: the kernel with this name ran or, if there is a `reason`,
    the original. Under `torch.compile` every call of a kernel counts, but a fallback only when it is traced,
    because the compiled code does not choose again."""

    operator: str
    kernel: str
    reason: str
    calls: int

    @property
    def taken(self) -> bool:
        """Whether a kernel ran."""
        return not self.reason


class Tally:
    """Counts calls, from any number of threads."""

    __slots__ = ("_lock", "calls")

    def __init__(self) -> None:
        self.calls = 0
        self._lock = threading.Lock()

    def add(self) -> None:
        """Counts one call."""
        with self._lock:
            self.calls += 1


class Tallies:
    """The tallies of one override, by operator, kernel and reason."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def of(self, operator: str, kernel: str = "", reason: str = "") -> Tally:
        """The tally for this operator, kernel and reason."""
        key = operator, kernel, reason
        return self._tallies.get(key) or self._tallies.setdefault(key, Tally())

    def counts(self) -> tuple[Count, ...]:
        """The nonzero counts by operator, kernels before fallbacks."""
        return tuple(
            Count(operator=operator, kernel=kernel, reason=reason, calls=tally.calls)
            for (operator, kernel, reason), tally in sorted(
                self._tallies.items(), key=lambda each: (each[0][0], each[0][2], each[0][1])
            )
            if tally.calls
        )


def table(counts: Sequence[Count]) -> str:
    """The counts as a text table."""
    rows = [("operator", "calls", "went to"), *((c.operator, str(c.calls), _went_to(c)) for c in counts)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{first}}  {calls:>{second}}  {went}" for name, calls, went in rows)


def _went_to(count: Count) -> str:
    return count.kernel if count.taken else f"the original: {count.reason}"
