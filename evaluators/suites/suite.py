"""The protocol of suites, and suites that list their problems."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class SuiteEntry:
    """One problem of a suite: `problem` is the value of `problem=…` that selects it, `weight` its relative
    weight in the suite's scores, `rival` the file of the best public kernel for it, with which winners are
    compared; "": none is known. Raises ValueError for a weight that is not positive."""

    problem: str
    weight: float = 1.0
    rival: str = ""

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
    """A suite given as a list of problems, or as a mapping to their weights, with the files of rivals."""

    def __init__(
        self, name: str, problems: Sequence[str] | dict[str, float], rivals: Mapping[str, str] | None = None
    ) -> None:
        """Raises ValueError for weights that are not positive, for a suite without problems, and for a rival
        of a problem that it does not have."""
        self.name = name
        weights = problems if isinstance(problems, dict) else dict.fromkeys(problems, 1.0)
        if not weights:
            raise ValueError(f"the suite {name} has no problems")
        if strange := (rivals or {}).keys() - weights.keys():
            raise ValueError(f"the suite {name} names a rival for {min(strange)}, which it does not have")
        self._entries = [
            SuiteEntry(problem=problem, weight=weight, rival=(rivals or {}).get(problem, ""))
            for problem, weight in weights.items()
        ]

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        return self._entries


class Folder:
    """The references in KernelBench's format below a folder: all files that define `Model` and
    `get_inputs`."""

    def __init__(self, name: str, path: str) -> None:
        self.name, self._folder = name, Path(path).expanduser()

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        found = [path for path in sorted(self._folder.rglob("*.py")) if _is_reference(path)]
        if not found:
            raise SuiteMissing(
                f"{self._folder} has no files that define Model and get_inputs; set suite.path to a folder "
                "that has"
            )
        return [SuiteEntry(problem=str(path)) for path in found]


def _is_reference(path: Path) -> bool:
    text = path.read_text(encoding="utf-8", errors="replace")
    return re.search(r"^class Model\b", text, re.M) is not None and "def get_inputs(" in text
