"""What a search waits for from outside: answers in a mailbox, verdicts in a queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@runtime_checkable
class WaitsOutside(Protocol):
    """A part of a search that others answer through files, in minutes or in days."""

    def awaited(self) -> list[str]:
        """Returns what it waits for, a line each: only what it has looked for and not found."""
        ...


@dataclass(frozen=True, kw_only=True)
class Awaited:
    """The answers and the verdicts that a search waits for, a line each."""

    answers: tuple[str, ...] = ()
    verdicts: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Both lists, for people."""
        found = []
        for what, each in (("an answer", self.answers), ("a device", self.verdicts)):
            if each:
                found += [f"awaiting {what} ({len(each)}):", *(f"    {line}" for line in each)]
        return found
