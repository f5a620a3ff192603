"""Runs the evaluators of SOL-ExecBench and FlashInfer-Bench in separate processes: for `definitions.py`."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.definition_sets import LANGUAGES, Asked, Found, converted, write_json, write_set
from evaluators.base.jsonl_store import JsonlStore, whole_lines
from evaluators.base.usage_error import UsageError
from evaluators.suites.definitions.solutions import COMPILED
from evaluators.system import process_tree

PASSED = "PASSED"
PACKAGES = {"solexec": "sol_execbench", "flashinfer": "flashinfer_bench"}
"""By set, the package of its evaluator, which is also the option with the clone that has it."""
SUITES = (*PACKAGES,)


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
    store, jobs = JsonlStore(out / "theirs.jsonl"), list[tuple[float, str, Job]]()
    for suite in which:
        package, make = PACKAGES[suite], solexec_jobs if suite == "solexec" else flashinfer_jobs
        if not (place := package_of(suite, given) / package).is_dir():
            raise UsageError(f"{suite}: there is no folder {place}; give a clone as {package}=PATH")
        shutil.rmtree(out / "theirs" / suite, ignore_errors=True)
        new = [each for each in asked if store.get(f"{suite} {each.key}") is None]
        made = list(make(new, out / "theirs" / suite))
        for number, job in enumerate(made):
            first = any(is_compiled(each.solution) for each in job.asked)  # it takes longest
            jobs.append((-1.0 if first else number / len(made), suite, job))
    environment = their_environment(out, given)
    deadline = time.monotonic() + float(given["their_limit_s"])
    found = {
        suite: {each.key: Found(**known) for each in asked if (known := store.get(f"{suite} {each.key}"))}
        for suite in SUITES
    }
    with ThreadPoolExecutor(int(given["at_a_time"])) as threads:
        tasks = {
            threads.submit(run_job, job, suite, environment, deadline): suite
            for _, suite, job in sorted(jobs, key=lambda each: each[0])
        }
        for number, task in enumerate(as_completed(tasks), 1):
            suite = tasks[task]
            for key, each in task.result().items():
                found[suite][key] = each
                if each.status:
                    store.put(f"{suite} {key}", asdict(each))
                said = each.status or f"no verdict: {each.words}"
                print(f"{suite} {number} of {len(tasks)}: {key}: {said}", file=sys.stderr, flush=True)
    solexec, flashinfer = (found[suite] for suite in SUITES)
    return [
        replace(each, solexec=solexec.get(each.key, Found()), flashinfer=flashinfer.get(each.key, Found()))
        for each in asked
    ]


def package_of(suite: str, given: Mapping[str, str]) -> Path:
    """The folder with a project's package, in the clone that was given."""
    return Path(given[PACKAGES[suite]], "src" if suite == "solexec" else "").resolve()


def their_environment(out: Path, given: Mapping[str, str]) -> dict[str, str]:
    """The variables of their processes: where packages, stored tensors and caches are, and a `python`."""
    command = out / "theirs" / "bin" / "python"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    command.chmod(0o755)
    path = [str(package_of(suite, given)) for suite in SUITES]
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
