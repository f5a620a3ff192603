"""Decides whether a problem belongs to a benchmark, which must not be trained on.

A shipped benchmark is a file of hashes in this folder, without its text. It was made from a clone by

    python -m search.harvest.benchmarks KernelBench/KernelBench <revision> > search/harvest/kernelbench.json
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from evaluators.records.problem import Problem, content_id
from search.harvest.corpus import HarvestError
from search.harvest.duplicates import jaccard
from search.harvest.identity import canonical, fingerprint, operators

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Hashes of a benchmark's references, and their canonical texts where these are available."""

    structures: frozenset[str]
    operators: frozenset[str]
    names: frozenset[str]
    texts: tuple[str, ...] = ()

    def why(self, problem: Problem, threshold: float) -> str | None:
        """Why the problem counts as one of the benchmark's; None if it does not. The rules prefer false
        positives: `structure`, equal up to sizes and names; `operators`, the same operations equally often;
        `name`; `near`, a Jaccard index of at least `threshold` with one of the texts."""
        source = problem.source
        if fingerprint(source) in self.structures:
            return "structure"
        if operators_hash(source) in self.operators:
            return "operators"
        if name_hash(problem.name) in self.names:
            return "name"
        near = any(jaccard(canonical(source), text) >= threshold for text in self.texts)
        return "near" if near else None


def shipped(name: str) -> Benchmark:
    """A benchmark whose hashes ship with Ideatree. Raises HarvestError for an unknown one."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        known = ", ".join(sorted(each.stem for each in FOLDER.glob("*.json")))
        raise HarvestError(f"decontaminate.benchmark={name} is unknown; available: {known}")
    data = json.loads(path.read_text())
    return Benchmark(
        structures=frozenset(data["structures"]),
        operators=frozenset(data["operators"]),
        names=frozenset(data["names"]),
    )


def in_folder(folder: Path) -> Benchmark:
    """A benchmark from the Python files below a folder. Raises HarvestError if no file has a reference."""
    files = [
        path for path in sorted(folder.rglob("*.py")) if "class Model" in path.read_text(errors="replace")
    ]
    if not files:
        raise HarvestError(f"decontaminate.path={folder} has no Python file with a class Model in it")
    sources = [path.read_text(errors="replace") for path in files]
    return Benchmark(
        structures=frozenset(map(fingerprint, sources)),
        operators=frozenset(filter(None, map(operators_hash, sources))),
        names=frozenset(name_hash(path.stem) for path in files),
        texts=tuple(map(canonical, sources)),
    )


def operators_hash(source: str) -> str:
    """Hash of a reference's operations, in any order; "" if it has none."""
    found = operators(source)
    return content_id("operators", *found) if found else ""


def name_hash(name: str) -> str:
    """Hash of a problem's name without level and number, so that `level1/softmax` equals `23_Softmax`."""
    last = re.sub(r"^\d+", "", name.rpartition("/")[2])
    return content_id("name", re.sub(r"[^a-z0-9]", "", last.lower()))


def main(arguments: Sequence[str]) -> int:
    """Prints the hashes of the references below a folder."""
    folder, revision = arguments
    found = in_folder(Path(folder))
    hashes = {key: sorted(getattr(found, key)) for key in ("structures", "operators", "names")}
    print(json.dumps({"revision": revision, "references": len(found.texts), **hashes}, indent=0))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
