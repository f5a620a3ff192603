"""The files of a set of definitions, and the suites that list them:

$FIB_DATASET_PATH/definitions/<group>/<name>.json    problem=flashinfer/<name>
$FIB_DATASET_PATH/workloads/<group>/<name>.jsonl
$SOL_EXECBENCH_ROOT/<group>/<name>/definition.json   problem=solexec/<name>
$SOL_EXECBENCH_ROOT/<group>/<name>/workload.jsonl
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.reference.loading import BadReference
from evaluators.suites.suite import SuiteEntry, SuiteMissing

ROOTS = {"flashinfer": "FIB_DATASET_PATH", "solexec": "SOL_EXECBENCH_ROOT"}
"""By suite, the environment variable with its folder."""
BLOBS = ("FIB_DATASET_PATH", "FLASHINFER_TRACE_DIR", "SOL_EXECBENCH_ROOT")
"""The environment variables with the folders that workloads' tensors may be in."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A definition's files: `group` is its kind of operator, or the part of the benchmark it belongs to."""

    suite: str
    group: str
    name: str
    file: Path
    workloads: Path

    @property
    def problem(self) -> str:
        """The value of `problem=…` that selects it."""
        return f"{self.suite}/{self.name}"

    def read(self) -> Mapping[str, Any]:
        """The definition. Raises BadReference."""
        (definition,) = self._values([self._text(self.file)])
        return definition

    def read_workloads(self) -> list[Mapping[str, Any]]:
        """Its workloads. Raises BadReference."""
        rows = self._values(line for line in self._text(self.workloads).splitlines() if line.strip())
        return [row.get("workload") or row for row in rows]

    def _text(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadReference(f"{self.problem} cannot be read: {first_line(error)}") from error

    def _values(self, texts: Iterable[str]) -> list[Mapping[str, Any]]:
        try:
            return [json.loads(text) for text in texts]
        except ValueError as error:
            raise BadReference(f"{self.problem} cannot be read: {first_line(error)}") from error


class Definitions:
    """A suite of definitions: all of `flashinfer` or `solexec`, or those of one `group`. The rival of each is
    the solution by the author `rival` in the suite's folder."""

    def __init__(self, name: str, group: str = "", rival: str = "") -> None:
        """Raises ValueError for a name of another suite."""
        self.name, self._group, self._rival = name, group, rival
        self._suite = name.partition("/")[0]
        if self._suite not in ROOTS:
            raise ValueError(f"the suite {name} has no definitions; known: {', '.join(ROOTS)}")

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        found = [each for each in definitions(self._suite) if self._group in ("", each.group)]
        if not found:
            groups = sorted({each.group for each in definitions(self._suite)})
            raise SuiteMissing(
                f"{self._suite} has no definitions of {self._group}; it has {', '.join(groups)}"
            )
        by = _solutions_by(self._rival, self._suite) if self._rival else {}
        rivals = [str(by.get(each.name, "")) for each in found]
        return [
            SuiteEntry(problem=each.problem, rival=rival) for each, rival in zip(found, rivals, strict=True)
        ]


def _solutions_by(author: str, suite: str) -> dict[str, Path]:
    """The author's solutions in a suite's folder, by definition. Raises SuiteMissing if there are none."""
    found, authors = dict[str, Path](), set[str]()
    for path in sorted(_root(suite).glob("**/*.json")):
        if (solution := solution_at(path)) is not None:
            authors.add(str(solution.get("author")))
            if solution.get("author") == author:
                found.setdefault(str(solution["definition"]), path)
    if not found:
        others = f"; its authors are {', '.join(sorted(authors))}" if authors else ""
        raise SuiteMissing(f"{suite} has no solutions by {author}{others}")
    return found


def definitions(suite: str) -> Sequence[Definition]:
    """All definitions of a suite, by name. Raises SuiteMissing."""
    variable = ROOTS[suite]
    if not (folder := os.environ.get(variable, "")):
        raise SuiteMissing(f"{suite} is not available: set {variable} to the folder of its data set")
    if not (found := _definitions_in(_root(suite), suite)):
        raise SuiteMissing(f"{variable}={folder} has no definitions of {suite}")
    return found


def _root(suite: str) -> Path:
    """The folder of a suite, if its variable is set."""
    return Path(os.environ.get(ROOTS[suite], "")).expanduser()


@functools.cache
def _definitions_in(root: Path, suite: str) -> Sequence[Definition]:
    if suite == "flashinfer":
        found = [
            Definition(
                suite=suite,
                group=file.parent.name,
                name=file.stem,
                file=file,
                workloads=root / "workloads" / file.relative_to(root / "definitions").with_suffix(".jsonl"),
            )
            for file in root.glob("definitions/**/*.json")
        ]
    else:
        found = [
            Definition(
                suite=suite,
                group=file.parent.parent.name,
                name=file.parent.name,
                file=file,
                workloads=file.with_name("workload.jsonl"),
            )
            for file in root.glob("**/definition.json")
        ]
    return sorted(found, key=lambda each: each.name)


def definition_of(problem: str) -> Definition:
    """The definition that `problem=…` selects. Raises SuiteMissing if the suite's folder is not there, and
    BadReference if it has no such definition."""
    suite, _, wanted = problem.partition("/")
    known = {each.name: each for each in definitions(suite)}
    if wanted not in known:
        raise BadReference(f"{suite} has no definition {wanted}{near(wanted, list(known))}")
    return known[wanted]


def definition_named(name: str, solution: Path) -> Definition | None:
    """The definition with this name; None if there is none. If both suites have one, it is that of the suite
    whose folder the solution's file is in."""
    around = solution.resolve().parents
    for suite in sorted(ROOTS, key=lambda each: _root(each).resolve() not in around):
        with contextlib.suppress(SuiteMissing):
            # A definition's own name may differ from that of its file.
            for each in sorted(definitions(suite), key=lambda one: one.name != name):
                if name in (each.name, each.read().get("name")):
                    return each
    return None


def solution_at(path: Path) -> dict[str, Any] | None:
    """The content of a JSON file if it looks like a solution."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"definition", "spec", "sources"} <= found.keys() else None


def stored_tensors(path: str) -> tuple[str, str] | None:
    """Where a workload's file of tensors is: the environment variable with its folder, and the path in that
    folder; None if no folder has it. The beginning of `path` may name the folder itself."""
    parts = Path(path).parts
    for variable in BLOBS:
        if root := os.environ.get(variable, ""):
            for start in range(len(parts)):
                place = Path(*parts[start:])
                if (Path(root).expanduser() / place).is_file():
                    return variable, str(place)
    return None
