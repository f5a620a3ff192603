"""Judges solutions of FlashInfer Trace and SOL-ExecBench with Ideatree and with the two projects' own
evaluators, and compares the verdicts.

    python benchmarks/definitions.py solexec=FOLDER[,FOLDER] flashinfer=FOLDER[,FOLDER]
        [sol_execbench=CLONE] [flashinfer_bench=CLONE] [only=ours,solexec,flashinfer]
        [names=rmsnorm,gemm] [authors=eager,wrong] [workloads=3] [at_a_time=6] [limit_s=300]
        [their_limit_s=120] [device=cuda] [out=outputs/definitions]

The folders are searched for definitions, their workloads and solutions. `out` gets a copy of each definition
with at most `workloads` of its workloads, and solutions by four authors:

- `eager`: the reference as it is
- `compile`: the reference under torch.compile
- `library`: the fastest kernel of the library that fits
- `wrong`: a solution with a planted fault (`definition_solutions.py`)

A page table that is missing from the folders is drawn. `ideatree score` judges all solutions. The projects'
evaluators run with their default settings in separate processes: SOL-ExecBench's for each solution,
FlashInfer-Bench's for each definition, and for each solution that came with the folders. A definition of one
project is converted for the other's evaluator if its format has everything that the definition needs. Both
evaluators time with CUPTI (package cupti-python), and FlashInfer-Bench imports flashinfer.testing. Up to
`at_a_time` of their processes share the GPU, so their speedups are less exact than those of a run alone.
Ideatree runs after them, alone.

Prints and writes a table, as CSV and as Markdown. It has the verdict of each evaluator, the speedup over the
reference on the largest workload, and the seconds. A list of the solutions on which the verdicts differ
follows. `limit_s` applies to our half, `their_limit_s` to theirs; a solution that is not judged by then has
no verdict. A call with the same `out` continues, because verdicts are saved in `evaluations.jsonl` and
`theirs.jsonl`. The exit status is 0 when ours finds every planted fault and accepts `eager`, `compile` and
`library`.
"""

from __future__ import annotations

import contextlib
import csv
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.definition_evaluators import PASSED, SUITES, judged_by_theirs
from benchmarks.definition_sets import AUTHORS, Asked, Found, lay_out
from benchmarks.mutants import given_options
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import whole_lines
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, language_of
from evaluators.suites.definitions.files import ROOTS
from evaluators.suites.definitions.solutions import BadSolution, read_solution
from evaluators.system import process_tree

OPTIONS = {
    "solexec": "",
    "flashinfer": "",
    "sol_execbench": "",
    "flashinfer_bench": "",
    "only": "ours,solexec,flashinfer",
    "names": "",
    "authors": "",
    "workloads": "3",
    "at_a_time": "6",
    "limit_s": "300",
    "their_limit_s": "120",
    "device": "cuda",
    "out": "outputs/definitions",
}
OURS = (
    *("problem.timed_workloads=1", "problem.checked_workloads=1"),
    *("evaluator.plan.precision=0.05", "evaluator.plan.max_s=0.4", "evaluator.timeout_s=90"),
)
"""The options of `ideatree score`: the largest workload is timed, one is checked, the others are held out."""
COLUMNS = (
    *("problem", "solution", "author", "says", "ours", "our_speedup", "our_low", "our_high", "our_s"),
    *("solexec", "solexec_speedup", "solexec_s", "flashinfer", "flashinfer_speedup", "flashinfer_s"),
    *("our_words", "solexec_words", "flashinfer_words"),
)


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status."""
    given = options_of(arguments)
    out = Path(given["out"]).resolve()
    asked = lay_out(out / "sets", given)
    authors = {each.author: None for each in asked}
    counts = ", ".join(f"{name} {sum(each.author == name for each in asked)}" for name in authors)
    print(
        f"{len({each.problem for each in asked})} definitions, {len(asked)} solutions ({counts})", flush=True
    )
    only = given["only"].split(",")
    asked = judged_by_theirs(asked, out, given, [each for each in SUITES if each in only])
    write(out, asked)
    asked = judged_by_ours(asked, out, given, limit_s=float(given["limit_s"]) if "ours" in only else 0)
    write(out, asked)
    print(*table(asked), "", *differences(asked), sep="\n", flush=True)
    return 0 if "ours" not in only or met(asked) else 1


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """All options, with defaults for those not given. Raises UsageError."""
    given = given_options(arguments, OPTIONS)
    for key in ("workloads", "at_a_time", "limit_s", "their_limit_s"):
        if not given[key].isdecimal() or given[key] == "0":
            raise UsageError(f"{key}={given[key]}; it must be a whole number above 0")
    if unknown := set(given["only"].split(",")) - {"ours", *ROOTS}:
        raise UsageError(f"only={min(unknown)}; known are ours, {', '.join(ROOTS)}")
    if not any(given[suite] for suite in ROOTS):
        raise UsageError("there is nothing to judge; give solexec=FOLDER or flashinfer=FOLDER")
    return given


def judged_by_ours(
    asked: Sequence[Asked], out: Path, given: Mapping[str, str], *, limit_s: float
) -> list[Asked]:
    """The solutions with our evaluations: the saved ones, and those that `ideatree score` makes in time."""
    sets = out / "sets"
    roots = {variable: str(sets / suite) for suite, variable in ROOTS.items()}
    os.environ |= roots | {"FLASHINFER_TRACE_DIR": str(sets)}
    options = [f"solutions={sets}", f"device={given['device']}", *OURS]
    saved = out / "evaluations.jsonl"
    if saved.exists():
        shutil.copy(saved, sets / saved.name)
    if limit_s:
        score(options, limit_s)
    if (sets / saved.name).exists():
        shutil.copy(sets / saved.name, saved)
    rows = whole_lines(saved.read_bytes()) if saved.exists() else []
    by_kernel = {str(row["key"]).split()[1]: row["value"] for row in rows}
    found = []
    for each in asked:
        try:
            source = read_solution(each.file).source
        except BadSolution as error:
            found.append(replace(each, our_words=f"skipped: {first_line(error)}"))
            continue
        value = by_kernel.get(Kernel(source=source, language=language_of(source)).id)
        evaluation = None if value is None else Evaluation.from_json(value)
        wrong = evaluation is not None and evaluation.status is not Status.CORRECT
        words = evaluation.cause if wrong and evaluation else ""
        found.append(replace(each, ours=evaluation, our_words=words))
    return found


def score(options: Sequence[str], limit_s: float) -> None:
    """Runs `ideatree score`, and interrupts it at the limit."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "evaluators.score", *options], stdout=sys.stderr)
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
        print(f"ours was stopped after {limit_s:.0f} s", file=sys.stderr)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    finally:
        process_tree.kill_tree(process.pid)
        process.wait()
    print(f"ours took {time.monotonic() - began:.0f} s in all", flush=True)


def row_of(each: Asked) -> dict[str, Any]:
    """The table's row, by column."""
    ours, timing = each.ours, each.ours.timing if each.ours else None
    row = {name: getattr(each, name) for name in ("problem", "author", "says", "our_words")}
    row |= {"solution": each.name, "ours": ours.status.value if ours else ""}
    row |= {
        "our_speedup": timing.speedup if timing else None,
        "our_low": timing.speedup_low if timing else None,
        "our_high": timing.speedup_high if timing else None,
        "our_s": ours.lease.held_s if ours and ours.lease else None,
    }
    for suite in SUITES:
        found: Found = getattr(each, suite)
        row |= {suite: found.status, f"{suite}_speedup": found.speedup}
        row |= {f"{suite}_s": found.seconds, f"{suite}_words": found.words}
    return row


def write(out: Path, asked: Sequence[Asked]) -> None:
    """Writes `definitions.csv` and `definitions.md`."""
    with (out / "definitions.csv").open("w", newline="") as file:
        lines = csv.DictWriter(file, COLUMNS)
        lines.writeheader()
        lines.writerows(map(row_of, asked))
    text = "\n".join([*table(asked), "", *differences(asked)])
    (out / "definitions.md").write_text(f"{text}\n")


def table(asked: Sequence[Asked]) -> list[str]:
    """A Markdown table of all verdicts, with the speedups and the seconds in the same cells."""
    lines = [
        "| definition | solution | ours | SOL-ExecBench | FlashInfer-Bench |",
        "|---|---|---|---|---|",
    ]
    for row in map(row_of, asked):
        cells = [short(row["problem"]), row["author"] if row["author"] in AUTHORS else row["solution"]]
        ours = cell(row["ours"], row["our_speedup"], row["our_s"])
        cells += [ours, *(cell(row[each], row[f"{each}_speedup"], row[f"{each}_s"]) for each in SUITES)]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def cell(status: str, speedup: float | None, seconds: float | None) -> str:
    """A verdict in a few words."""
    if not status:
        return "-"
    times = "" if speedup is None else f" {speedup:.2f}x"
    return f"{status}{times}" + ("" if seconds is None else f" ({seconds:.1f} s)")


def short(problem: str) -> str:
    """A problem's name, shortened in the middle."""
    return problem if len(problem) < 44 else f"{problem[:24]}…{problem[-18:]}"


def differences(asked: Sequence[Asked]) -> list[str]:
    """The solutions on which a project's verdict differs from ours, or that an evaluator did not judge."""
    lines = []
    for each in asked:
        ours = each.ours.status.value if each.ours else "no verdict"
        for suite in SUITES:
            found: Found = getattr(each, suite)
            if found.status and each.ours and (found.status == PASSED) != (ours == Status.CORRECT.value):
                said = f"{each.says}: " if each.says else ""
                lines.append(
                    f"- {each.problem}, {each.name}: {said}ours {ours} {each.our_words[:200]}; "
                    f"{suite} {found.status} {found.words[:200]}"
                )
            elif not found.status and found.words:
                lines.append(f"- {each.problem}, {each.name}: {suite} has no verdict: {found.words[:200]}")
        if each.ours is None and each.our_words:
            lines.append(f"- {each.problem}, {each.name}: ours has no verdict: {each.our_words[:200]}")
    return lines


def met(asked: Sequence[Asked]) -> bool:
    """Whether ours finds every planted fault and accepts the other solutions written here."""
    written = [each for each in asked if each.is_written]
    return all(
        each.ours is not None and (each.ours.status is Status.CORRECT) != (each.author == "wrong")
        for each in written
    )


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except UsageError as error:
        sys.exit(f"definitions.py: {error}")
    sys.exit(status)
