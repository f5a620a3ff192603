"""Runs the evaluators of SOL-ExecBench and FlashInfer-Bench in separate processes: for `definitions.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.definition_sets import LANGUAGES, Asked, Found, converted, write_json, write_set
from evaluators.base.jsonl_store import JsonlStore, whole_lines
from evaluators.base.usage_error import UsageError
from evaluators.suites.definitions.solutions import COMPILED
from evaluators.system import process_tree

PASSED = "PASSED"
SUITES = ("solexec", "flashinfer")


@dataclass(frozen=True, kw_only=True)
class Job:
    """A process of a project's evaluator: its folder, the command, and the solutions that it judges."""

    folder: Path
    command: Sequence[str]
    asked: Sequence[Asked]


def judged_by_theirs(
    asked: Sequence[Asked], out: Path, given: Mapping[str, str], which: Sequence[str]
) -> list[Asked]:
    """The solutions with the findings of the projects' evaluators, as far as they got within the limit."""
    work, saved = out / "theirs", out / "theirs.jsonl"
    shutil.rmtree(work, ignore_errors=True)
    store = JsonlStore(saved)
    jobs = dict[str, list[Job]]()
    for suite, clone, make in (
        ("solexec", given["sol_execbench"], solexec_jobs),
        ("flashinfer", given["flashinfer_bench"], flashinfer_jobs),
    ):
        if suite in which:
            if not Path(clone, "src" if suite == "solexec" else "flashinfer_bench").is_dir() or not clone:
                raise UsageError(f"{suite}: there is no clone of the evaluator in {clone or 'its option'}")
            new = [each for each in asked if store.get(f"{suite} {each.key}") is None]
            jobs[suite] = list(make(new, work / suite))
    environment = their_environment(out, given)
    deadline = time.monotonic() + float(given["their_limit_s"])
    first_compiled = sorted(
        ((suite, job) for suite, each in jobs.items() for job in each),
        key=lambda one: not any(is_compiled(each.solution) for each in one[1].asked),
    )

    def one(pair: tuple[str, Job]) -> tuple[str, dict[str, Found]]:
        suite, job = pair
        return suite, run_job(job, suite, environment, deadline)

    with ThreadPoolExecutor(int(given["at_a_time"])) as threads:
        for number, (suite, results) in enumerate(threads.map(one, first_compiled), 1):
            for key, each in results.items():
                if each.status:
                    store.put(f"{suite} {key}", asdict(each))
            shown = ", ".join(f"{key} {each.status or each.words}" for key, each in results.items())
            print(f"{suite} {number} of {len(first_compiled)}: {shown}", file=sys.stderr, flush=True)
    found = {suite: [store.get(f"{suite} {each.key}") for each in asked] for suite in SUITES}
    return [
        replace(each, **{suite: Found(**values[n]) for suite, values in found.items() if values[n]})
        for n, each in enumerate(asked)
    ]


def their_environment(out: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of their processes: where packages, stored tensors and caches are, and a `python`."""
    command = out / "theirs" / "bin" / "python"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    command.chmod(0o755)
    path = [str(Path(given["sol_execbench"] or ".", "src")), given["flashinfer_bench"]]
    path = [str(Path(each).resolve()) for each in path if each]
    return os.environ | {
        "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": os.pathsep.join([*path, os.environ.get("PYTHONPATH", "")]),
        "FLASHINFER_TRACE_DIR": str(out / "sets"),
        "TORCHINDUCTOR_COMPILE_THREADS": "2",
        "MAX_JOBS": "3",
    }


def is_compiled(solution: Mapping[str, Any]) -> bool:
    """Whether a compiler of C++ or CUDA has to build it."""
    spec = solution["spec"]
    return any(each in COMPILED for each in spec.get("languages") or [spec["language"]])


def solexec_jobs(asked: Sequence[Asked], work: Path) -> Iterator[Job]:
    """A process for each solution that SOL-ExecBench's format can express."""
    for number, each in enumerate(asked):
        try:
            there = converted(each.solution, "solexec")
        except KeyError:
            continue
        if there["spec"].get("binding") == "tvm-ffi" or (each.suite == "flashinfer" and is_compiled(there)):
            continue
        folder = work / str(number)
        write_json(folder / "definition.json", each.definition)
        (folder / "workload.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in each.workloads))
        write_json(folder / "solution.json", there)
        command = ["-m", "sol_execbench.cli.main", str(folder), "-o", str(folder / "traces.jsonl")]
        yield Job(folder=folder, command=command, asked=[each])


def flashinfer_jobs(asked: Sequence[Asked], work: Path) -> Iterator[Job]:
    """A process for our solutions of a definition, and one for each of the others, which may change the
    process that they run in."""
    groups: dict[tuple[str, str], list[Asked]] = {}
    for each in asked:
        definition, languages = each.definition, each.solution["spec"].get("languages", ["triton"])
        types = {axis["type"] for axis in definition["axes"].values()}
        has_form = types <= {"const", "var"} and not definition.get("custom_inputs_entrypoint")
        if has_form and languages[0] in LANGUAGES:
            groups.setdefault((each.problem, "" if each.is_written else each.name), []).append(each)
    for number, group in enumerate(groups.values()):
        folder, definition = work / str(number), {"op_type": "L0", **group[0].definition}
        definition["op_type"] = definition["op_type"] or "L0"
        write_set(folder, "flashinfer", definition["op_type"], definition, group[0].workloads)
        for each in group:
            write_json(folder / "solutions" / f"{each.name}.json", converted(each.solution, "flashinfer"))
        (folder / "blob").symlink_to(work.parents[1] / "sets" / "blob")
        command = ["-m", "flashinfer_bench", "run", "--local", str(folder), "--timeout", "60"]
        yield Job(folder=folder, command=command, asked=group)


def run_job(job: Job, suite: str, environment: Mapping[str, str], deadline: float) -> dict[str, Found]:
    """The findings of a process by its solutions' keys, as far as it gets until the deadline."""
    began = time.monotonic()
    if began >= deadline:
        return {each.key: Found(words="not begun in time") for each in job.asked}
    log = job.folder / "log.txt"
    caches = {name: str(job.folder / name) for name in ("FIB_CACHE_PATH", "TORCH_EXTENSIONS_DIR")}
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, *job.command],
            cwd=job.folder,
            env={**environment, **caches},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            process.wait(max(deadline - began, 1))
        except subprocess.TimeoutExpired:
            file.write("\nerror: stopped at the time limit\n")
        finally:
            process_tree.kill_tree(process.pid)
            process.wait()
    seconds = time.monotonic() - began
    files = [job.folder / "traces.jsonl"] if suite == "solexec" else job.folder.glob("traces/**/*.jsonl")
    rows = [row for each in files if each.is_file() for row in whole_lines(each.read_bytes())]
    found = {}
    for each in job.asked:
        own = [row["evaluation"] for row in rows if row["solution"] == each.name and row["evaluation"]]
        one = summed_up(own, len(each.workloads), log.read_text(errors="replace"))
        found[each.key] = replace(one, seconds=seconds / len(job.asked))
    return found


def summed_up(evaluations: Sequence[Mapping[str, Any]], count: int, log: str) -> Found:
    """What the traces of a solution's workloads say together; without all of them, the end of the log."""
    if failed := next((each for each in evaluations if each["status"] != PASSED), None):
        errors = failed.get("correctness") or {}
        words = last_line(failed.get("log") or "") or f"largest error {errors.get('max_absolute_error')}"
        return Found(status=failed["status"], words=words)
    if "Compilation failed" in log:
        return Found(status="COMPILE_ERROR", words=last_error(log))
    if len(evaluations) < count:
        return Found(words=last_error(log))
    return Found(status=PASSED, speedup=evaluations[0]["performance"]["speedup_factor"])


def last_line(text: str) -> str:
    """The last line that says something, cut."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "")


def last_error(text: str) -> str:
    """The last line of a log that names an error, or its last line."""
    lines = [line.strip()[:300] for line in text.splitlines() if "error" in line.lower()]
    return lines[-1] if lines else last_line(text)
