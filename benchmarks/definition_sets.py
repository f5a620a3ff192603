"""Copies definitions of FlashInfer Trace and SOL-ExecBench with solutions to judge: for `definitions.py`."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from benchmarks.definition_solutions import FAULTS, from_library
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation
from evaluators.suites.definitions.files import ROOTS, solution_at
from evaluators.suites.workloads import chosen
from kernel_library.catalogue.entry import architecture_of
from kernel_library.catalogue.library import FolderLibrary

AUTHORS = ("eager", "compile", "library", "wrong")
LANGUAGES = {"pytorch": "python", "triton": "triton", "cuda_cpp": "cuda"}
"""SOL-ExecBench's languages that FlashInfer Trace has too, by their names there."""


@dataclass(frozen=True, kw_only=True)
class Found:
    """What a project's evaluator found: a status (that of the first workload that failed, or PASSED), the
    speedup on the largest workload, the seconds that its process took, and the end of its log."""

    status: str = ""
    speedup: float | None = None
    seconds: float | None = None
    words: str = ""


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A solution to judge. `file` is in the copy of its set, `says` describes a planted fault."""

    problem: str
    name: str
    author: str
    file: Path
    definition: Mapping[str, Any]
    workloads: Sequence[Mapping[str, Any]]
    solution: Mapping[str, Any]
    says: str = ""
    ours: Evaluation | None = None
    our_words: str = ""
    solexec: Found = Found()
    flashinfer: Found = Found()

    @property
    def suite(self) -> str:
        """The set that the definition comes from."""
        return self.problem.partition("/")[0]

    @property
    def key(self) -> str:
        """The definition and the solution."""
        return f"{self.problem} {self.name}"

    @property
    def is_written(self) -> bool:
        """Whether this benchmark wrote it."""
        return self.author in AUTHORS


def lay_out(root: Path, given: Mapping[str, str]) -> list[Asked]:
    """Copies the definitions with some of their workloads, and writes all solutions. Raises UsageError."""
    shutil.rmtree(root, ignore_errors=True)
    architecture = architecture_of(given["device"], capability() if given["device"] == "cuda" else "")
    known = FolderLibrary(root / "none").entries()
    words, asked = given["names"].split(","), list[Asked]()
    authors = [each for each in given["authors"].split(",") if each]
    for suite in ROOTS:
        folders = [Path(each) for each in given[suite].split(",") if each]
        theirs = list(solutions_in(folders))
        names = set[str]()
        for definition, rows in definitions_in(suite, folders):
            names.add(definition["name"])
            if not any(word in definition["name"] for word in words):
                continue
            rows = [filled(row, definition, root, folders) for row in rows]
            kept = spread(rows, int(given["workloads"]))
            written = solutions_of(f"{suite}/{definition['name']}", definition, known, architecture)
            own = [each for each in theirs if each["definition"] == definition["name"]]
            some = [each for each in (*own, *written) if each["author"] in authors or not authors]
            asked += copied(root, suite, definition, kept, some)
        for each in theirs:
            if each["definition"] not in names:
                print(f"{suite}: skipped {each['name']}: no definition {each['definition']}", flush=True)
    if not asked:
        raise UsageError(f"the folders have no definitions like names={given['names']}")
    return asked


def capability() -> str:
    """The GPU's compute capability, such as 9.0. Another process asks, so that this one has no context."""
    asks = "import torch; print(*torch.cuda.get_device_capability(), sep='.')"
    return subprocess.run([sys.executable, "-c", asks], stdout=subprocess.PIPE, text=True).stdout.strip()


def definitions_in(suite: str, folders: Sequence[Path]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """The definitions of folders in a set's form, each name once, with their workloads."""
    pattern = "**/definition.json" if suite == "solexec" else "**/definitions/**/*.json"
    seen = set[str]()
    for file in (each for folder in folders for each in sorted(folder.glob(pattern))):
        if suite == "solexec":
            workloads = file.with_name("workload.jsonl")
        else:
            root = next(each.parent for each in file.parents if each.name == "definitions")
            inside = file.relative_to(root / "definitions").with_suffix(".jsonl")
            workloads = root / "workloads" / inside
        definition = json.loads(file.read_text())
        if definition["name"] not in seen and workloads.is_file():
            seen.add(definition["name"])
            rows = [json.loads(line) for line in workloads.read_text().splitlines() if line.strip()]
            yield definition, [row.get("workload") or row for row in rows]


def solutions_in(folders: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The solutions of folders, each name once, with the sources that are in files of their own. A solution
    next to a definition is for that one."""
    seen = set[str]()
    for file in (each for folder in folders for each in sorted(folder.rglob("*.json"))):
        if (solution := solution_at(file)) is None or solution["name"] in seen:
            continue
        seen.add(solution["name"])
        if (beside := file.with_name("definition.json")).is_file():
            solution["definition"] = json.loads(beside.read_text())["name"]
        for source in solution["sources"]:
            source["content"] = source.get("content") or file.with_name(source["path"]).read_text()
        yield solution


def filled(
    row: dict[str, Any], definition: Mapping[str, Any], root: Path, folders: Sequence[Path]
) -> dict[str, Any]:
    """A workload whose stored tensors are in `root`: copied from the folders, or drawn if it has a page
    table that is missing there."""
    stored = {name for name, each in row["inputs"].items() if each["type"] == "safetensors"}
    if not stored:
        return row
    inputs = {name: dict(each) for name, each in row["inputs"].items()}
    path = f"blob/{definition['name']}/{row['uuid']}.safetensors"
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    places = {str(folder): folder / inputs[min(stored)]["path"] for folder in folders}
    if there := next((each for each in places.values() if each.is_file()), None):
        shutil.copy(there, root / path)
    else:
        axes, generator = row["axes"], torch.Generator().manual_seed(0)
        pages = torch.randperm(axes["num_pages"], generator=generator)[: axes["num_kv_indices"]]
        ends = torch.linspace(0, axes["num_kv_indices"], axes["len_indptr"])
        save_file({"kv_indptr": ends.int(), "kv_indices": pages.int()}, root / path)
    for name in stored:
        inputs[name]["path"] = path
    return {**row, "inputs": inputs}


def spread(rows: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """Some of the workloads, from the largest to the smallest."""
    found, _, _ = chosen(
        rows,
        timed_workloads=count,
        checked_workloads=0,
        size=lambda row: math.prod(row["axes"].values()),
        weight=lambda _: None,
    )
    return found


def solutions_of(
    problem: str, definition: Mapping[str, Any], known: Sequence[Any], architecture: str
) -> Iterator[dict[str, Any]]:
    """The solutions that this benchmark writes, in SOL-ExecBench's form."""
    reference, inputs = definition["reference"].rstrip() + "\n", ", ".join(definition["inputs"])
    language = "triton" if "import triton" in reference else "pytorch"
    compiled = (
        f"compiled = torch.compile(run)\n\n\ndef run_compiled({inputs}):\n    return compiled({inputs})\n"
    )
    yield solution(definition, "eager", reference, language, says="the reference as it is")
    yield solution(
        definition,
        "compile",
        f"{reference}\n\n{compiled}",
        language,
        entry="run_compiled",
        says="the reference under torch.compile",
    )
    if (found := from_library(known, problem, architecture)) is None:
        print(f"{problem}: the library has no kernel that fits", flush=True)
    else:
        entry, code = found
        language = "triton" if entry.kernel.language == "triton" else "pytorch"
        yield solution(definition, "library", code, language, says=f"the library's {entry.id}")
    if (fault := FAULTS.get(problem)) is None:
        print(f"{problem}: no wrong solution is written for it", flush=True)
    else:
        code = f"import torch\n\n\n{fault.code.strip()}\n"
        yield solution(definition, "wrong", code, "pytorch", says=fault.says)


def solution(
    definition: Mapping[str, Any], author: str, code: str, language: str, *, says: str, entry: str = "run"
) -> dict[str, Any]:
    """A solution of one Python file that returns its outputs, in SOL-ExecBench's form."""
    return {
        "name": f"{definition['name']}_{author}",
        "definition": definition["name"],
        "author": author,
        "description": says,
        "spec": {
            "languages": [language],
            "target_hardware": ["LOCAL"],
            "entry_point": f"main.py::{entry}",
            "dependencies": ["torch", *(["triton"] if language == "triton" else [])],
            "destination_passing_style": False,
        },
        "sources": [{"path": "main.py", "content": code}],
    }


def copied(
    root: Path,
    suite: str,
    definition: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    solutions: Iterable[dict[str, Any]],
) -> list[Asked]:
    """Writes a definition, workloads and solutions in their set's form."""
    name, group = definition["name"], definition.get("op_type") or "L0"
    write_set(root / suite, suite, group, definition, rows)
    asked = []
    for each in solutions:
        is_written = each["author"] in AUTHORS
        there = each if suite == "solexec" and "languages" in each["spec"] else converted(each, suite)
        file = root / suite / "solutions" / name / f"{each['name']}.json"
        write_json(file, there)
        one = Asked(
            problem=f"{suite}/{name}",
            name=each["name"],
            author=each["author"] if is_written else f"{each['author']} (theirs)",
            file=file,
            definition=definition,
            workloads=rows,
            solution=there,
            says=each.get("description") or "" if is_written else "",
        )
        asked.append(one)
    return asked


def converted(solution: Mapping[str, Any], suite: str) -> dict[str, Any]:
    """A solution in the form of a set. Raises KeyError for a language that the set does not have."""
    spec = dict(solution["spec"])
    if suite == "solexec" and "language" in spec:
        names = {there: here for here, there in LANGUAGES.items()}
        spec["languages"] = [names[spec.pop("language")]]
        spec["target_hardware"] = ["LOCAL"]
    if suite == "flashinfer" and "languages" in spec:
        spec["language"] = LANGUAGES[spec.pop("languages")[0]]
        spec.pop("compile_options", None)
        if spec["language"] == "cuda":
            spec["binding"] = "torch"
    return {**solution, "spec": spec}


def write_set(
    root: Path, suite: str, group: str, definition: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]
) -> None:
    """Writes a definition and its workloads in a set's form."""
    name = definition["name"]
    if suite == "solexec":
        write_json(root / group / name / "definition.json", definition)
        lines, file = [json.dumps(row) for row in rows], root / group / name / "workload.jsonl"
    else:
        write_json(root / "definitions" / group / f"{name}.json", definition)
        file = root / "workloads" / group / f"{name}.jsonl"
        empty = {"definition": name, "solution": None, "evaluation": None}
        lines = [json.dumps({**empty, "workload": row}) for row in rows]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(f"{line}\n" for line in lines))


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Writes a JSON file in a folder that may be new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(value, indent=1) + "\n")
