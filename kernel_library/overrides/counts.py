"""What was called how often, and why a call went to the original."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Count:
    """Calls of one operator that went the same way: to the kernel with this name, or, where `reason` says
    why, to the original. `calls` under `torch.compile` are those of a kernel; a fallback is there once for
    each time that it was traced, since the compiled code does not ask again."""

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
        """One more."""
        with self._lock:
            self.calls += 1


class Tallies:
    """The tallies of one override, by operator, kernel and reason."""

    def __init__(self) -> None:
        self._tallies: dict[tuple[str, str, str], Tally] = {}

    def of(self, operator: str, kernel: str = "", reason: str = "") -> Tally:
        """The tally of calls that go this way."""
        key = operator, kernel, reason
        return self._tallies.get(key) or self._tallies.setdefault(key, Tally())

    def counts(self) -> tuple[Count, ...]:
        """All that were called, by operator; what was taken comes before what fell back."""
        return tuple(
            Count(operator=operator, kernel=kernel, reason=reason, calls=tally.calls)
            for (operator, kernel, reason), tally in sorted(
                self._tallies.items(), key=lambda each: (each[0][0], each[0][2], each[0][1])
            )
            if tally.calls
        )


def table(counts: Sequence[Count]) -> str:
    """The counts in lines."""
    rows = [("operator", "calls", "went to"), *((c.operator, str(c.calls), _went(c)) for c in counts)]
    first, second = (max(len(row[column]) for row in rows) for column in (0, 1))
    return "\n".join(f"{name:<{first}}  {calls:>{second}}  {went}" for name, calls, went in rows)


def _went(count: Count) -> str:
    return count.kernel if count.taken else f"the original: {count.reason}"
