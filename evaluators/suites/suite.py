"""The protocol of suites, and suites that list their problems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class SuiteEntry:
    """One problem of a suite: `problem` is the value of `problem=…` that selects it, `weight` its relative
    weight in the suite's scores. Raises ValueError for a weight that is not positive."""

    problem: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"the weight of {self.problem} is {self.weight:g}; it must be positive")


class Suite(Protocol):
    """A named collection of problems, which are read only when needed."""

    name: str

    def entries(self) -> Sequence[SuiteEntry]:
        """Its problems, each once, in the order of the suite. Raises SuiteMissing if they are unavailable."""
        ...


class SuiteMissing(ValueError):
    """The problems of a suite are unavailable; the message says, in one line, how to get them."""


class Listed:
    """A suite given as a list of problems, or as a mapping to their weights."""

    def __init__(self, name: str, problems: Sequence[str] | dict[str, float]) -> None:
        """Raises ValueError for weights that are not positive, and for a suite without problems."""
        self.name = name
        weights = problems if isinstance(problems, dict) else dict.fromkeys(problems, 1.0)
        if not weights:
            raise ValueError(f"the suite {name} has no problems")
        self._entries = [SuiteEntry(problem=problem, weight=weight) for problem, weight in weights.items()]

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        return self._entries
