"""KernelBench's problems: from a clone, whose folder the variable KERNELBENCH_ROOT names, or from the data
set on the Hugging Face hub, which `datasets` keeps in its cache.

Their form is ours. What is judged otherwise than there is in `docs/kernelbench.md`.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.nearest import nearest
from evaluators.records.problem import Problem
from evaluators.reference.loading import BadReference, make_problem
from evaluators.suites.suite import SuiteEntry, SuiteMissing

ROOT = "KERNELBENCH_ROOT"
DATASET = "ScalingIntelligence/KernelBench"
LEVELS = (1, 2, 3, 4)
REPRESENTATIVE: Mapping[int, Sequence[int]] = {
    1: (1, 3, 6, 18, 23, 26, 33, 36, 40, 42, 48, 54, 57, 65, 77, 82, 86, 87),
    2: (1, 2, 8, 18, 23, 28, 33, 43),
    3: (1, 5, 8, 11, 20, 21, 33, 38, 43),
}
"""The numbers of the problems in the authors' representative subset, by level."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A problem as it is there: `name` is the file's, without its ending (`23_Softmax`)."""

    level: int
    number: int
    name: str
    source: str

    @property
    def problem(self) -> str:
        """The choice of `problem=…` that opens it."""
        return f"kernelbench/level{self.level}/{self.name}"


def load_kernelbench_problem(name: str, **rules: Any) -> Problem:
    """The problem `kernelbench/level<n>/<number or name>`: `kernelbench/level1/23`, `…/23_Softmax` and
    `…/Softmax` are the same. `rules`: of `evaluators.reference.loading.make_problem`. Raises SuiteMissing
    where KernelBench is not here, BadReference in one line where it has no such problem."""
    found = find(name)
    return make_problem(found.source, where=found.problem, name=found.problem, **rules)


def find(name: str) -> Reference:
    """The problem of this name. Raises SuiteMissing and BadReference."""
    matched = re.fullmatch(r"(?:kernelbench/)?level([1-4])/(.+)", name)
    if matched is None:
        raise BadReference(f"{name} is no problem of KernelBench: kernelbench/level1/23 is one")
    level, wanted = int(matched[1]), matched[2].removesuffix(".py")
    there = references(level)
    for each in there:
        if wanted in (each.name, str(each.number), each.name.partition("_")[2].strip("_")):
            return each
    near = nearest(wanted, [each.name for each in there])
    hint = f"; did you mean {near}?" if near else f"; there are 1 to {max(each.number for each in there)}"
    raise BadReference(f"KernelBench has no {wanted} in level {level}{hint}")


def references(level: int) -> Sequence[Reference]:
    """All of a level, by their numbers. Raises SuiteMissing."""
    root = os.environ.get(ROOT, "")
    return _of_clone(Path(root).expanduser(), level) if root else _of_dataset(level)


class KernelBench:
    """Some of its levels: all of them, or the problems with these `numbers` by level."""

    def __init__(
        self, name: str, levels: Sequence[int], numbers: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """Raises ValueError for a level that there is not."""
        if not levels or set(levels) - set(LEVELS):
            raise ValueError(f"levels is {list(levels)}; KernelBench has the levels 1 to 4")
        self.name, self._levels, self._numbers = name, levels, numbers

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        return [
            SuiteEntry(problem=each.problem)
            for level in self._levels
            for each in references(level)
            if self._numbers is None or each.number in self._numbers.get(level, ())
        ]


class Representative(KernelBench):
    """The authors' representative subset of the levels 1 to 3."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sorted(REPRESENTATIVE), REPRESENTATIVE)


@functools.cache
def _of_clone(root: Path, level: int) -> Sequence[Reference]:
    """`root`: of the clone, or its folder with the levels."""
    folders = [root / "KernelBench" / f"level{level}", root / f"level{level}"]
    folder = next((each for each in folders if each.is_dir()), None)
    if folder is None:
        raise SuiteMissing(
            f"{ROOT}={root} is no clone of KernelBench: it has no folder KernelBench/level{level}"
        )
    found = [
        Reference(
            level=level, number=int(matched[1]), name=path.stem, source=path.read_text(encoding="utf-8")
        )
        for path in folder.glob("*.py")
        if (matched := re.match(r"(\d+)_", path.name))
    ]
    return sorted(found, key=lambda each: each.number)


@functools.cache
def _of_dataset(level: int) -> Sequence[Reference]:
    how = f"clone github.com/{DATASET} and set {ROOT} to its folder"
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise SuiteMissing(
            f"KernelBench is not here: {how}, or pip install 'ideatree[kernelbench]'"
        ) from error
    try:
        rows = load_dataset(DATASET, split=f"level_{level}")
    except Exception as error:  # a foreign service, and a package of many kinds of errors
        reason = str(error).partition("\n")[0]
        raise SuiteMissing(f"KernelBench's data set cannot be had ({reason}); {how}") from error
    found = [
        Reference(level=level, number=int(row["problem_id"]), name=row["name"], source=row["code"])
        for row in rows
    ]
    return sorted(found, key=lambda each: each.number)
