"""KernelBench's problems: from a clone in the folder that the environment variable KERNELBENCH_ROOT names, or
from the dataset on the Hugging Face hub, which `datasets` caches.

They have our format. `docs/guides/kernelbench.md` explains how our judging differs from KernelBench's.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.nearest import nearest
from evaluators.records.problem import Problem
from evaluators.reference.loading import BadReference, make_problem, read_reference
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
TRAINING = "training/"
"""In the name of a problem: it is judged with its backward pass."""
WITHOUT_GRADIENTS: Mapping[int, Sequence[int]] = {1: (51, 52)}
"""The numbers of the problems that return indices only, by level."""


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A problem of KernelBench: `name` is its file name without the suffix (`23_Softmax`). `read` reads its
    source."""

    level: int
    number: int
    name: str
    read: Callable[[], str]

    @property
    def source(self) -> str:
        """Its source. Raises BadReference if the file is no text."""
        return self.read()

    @property
    def problem(self) -> str:
        """The value of `problem=…` that selects it."""
        return f"kernelbench/level{self.level}/{self.name}"

    @property
    def training(self) -> str:
        """The same for the problem with its backward pass."""
        return f"kernelbench/{TRAINING}level{self.level}/{self.name}"


def load_kernelbench_problem(name: str, **rules: Any) -> Problem:
    """The problem `kernelbench/level<n>/<number or name>`: `kernelbench/level1/23`, `…/23_Softmax` and
    `…/Softmax` are the same. `kernelbench/training/level1/23` is judged with its backward pass. `rules` are
    arguments of `evaluators.reference.loading.make_problem`. Raises SuiteMissing if KernelBench is not
    available, and BadReference if it has no such problem."""
    plain = name.removeprefix("kernelbench/")
    found, train = find(plain.removeprefix(TRAINING)), plain.startswith(TRAINING)
    full = found.training if train else found.problem
    return make_problem(
        found.source, where=full, name=full, **{**rules, "backward": train or rules.get("backward", False)}
    )


def find(name: str) -> Reference:
    """The problem with this name. Raises SuiteMissing and BadReference."""
    matched = re.fullmatch(r"(?:kernelbench/)?level([1-4])/(.+)", name)
    if matched is None:
        raise BadReference(f"unknown problem {name}; KernelBench's are named like kernelbench/level1/23")
    level, wanted = int(matched[1]), matched[2].removesuffix(".py")
    known = references(level)
    for each in known:
        if wanted in (each.name, str(each.number), each.name.partition("_")[2].strip("_")):
            return each
    near = nearest(wanted, [each.name for each in known])
    hint = f"; did you mean {near}?" if near else f"; it has 1 to {max(each.number for each in known)}"
    raise BadReference(f"KernelBench's level {level} has no problem {wanted}{hint}")


def references(level: int) -> Sequence[Reference]:
    """All problems of a level, by number. Raises SuiteMissing."""
    root = os.environ.get(ROOT, "")
    return _of_clone(Path(root).expanduser(), level) if root else _of_dataset(level)


class KernelBench:
    """The suite of some levels, or only of the problems with these `numbers` by level."""

    def __init__(
        self, name: str, levels: Sequence[int], numbers: Mapping[int, Sequence[int]] | None = None
    ) -> None:
        """Raises ValueError for an unknown level."""
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


class Training(KernelBench):
    """The problems of some levels that have gradients, judged with their backward passes."""

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        return [
            SuiteEntry(problem=each.training)
            for level in self._levels
            for each in references(level)
            if each.number not in WITHOUT_GRADIENTS.get(level, ())
        ]


class Representative(KernelBench):
    """The authors' representative subset of levels 1 to 3."""

    def __init__(self, name: str) -> None:
        super().__init__(name, sorted(REPRESENTATIVE), REPRESENTATIVE)


@functools.cache
def _of_clone(root: Path, level: int) -> Sequence[Reference]:
    """`root` is the clone, or its folder that has the levels."""
    folders = [root / "KernelBench" / f"level{level}", root / f"level{level}"]
    folder = next((each for each in folders if each.is_dir()), None)
    if folder is None:
        raise SuiteMissing(
            f"{ROOT}={root} is not a clone of KernelBench: it has no folder KernelBench/level{level}"
        )
    found = [
        Reference(
            level=level,
            number=int(matched[1]),
            name=path.stem,
            read=functools.partial(read_reference, path),
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
            f"KernelBench is not available: {how}, or run pip install -e '.[kernelbench]' in Ideatree's clone"
        ) from error
    try:
        rows = load_dataset(DATASET, split=f"level_{level}")
    except Exception as error:  # a remote service, whose client raises many kinds of errors
        reason = str(error).partition("\n")[0]
        raise SuiteMissing(f"KernelBench's dataset cannot be downloaded ({reason}); {how}") from error
    found = [
        Reference(
            level=level,
            number=int(row["problem_id"]),
            name=row["name"],
            read=functools.partial(str, row["code"]),
        )
        for row in rows
    ]
    return sorted(found, key=lambda each: each.number)
