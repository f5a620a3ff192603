"""Checks which problems of a suite can judge kernels:

    ideatree audit suite=kernelbench/level1
    ideatree audit suite=kernelbench/level1 only=[23,40] problem.tolerance=strict
    ideatree audit suite=shipped device=cpu out=my_audit
    ideatree audit suite=shipped opening=true

A reference cannot judge if a lazy answer passes: zeros, constants, the outputs for other inputs, an input
itself, or an answer that uses half of the input. Each audit is saved at once as a line of
`<out>/<suite>.jsonl`, and a repeated call skips saved audits. `<out>/<suite>.csv` has the table, and
`<out>/<suite>_excluded.json` the problems to exclude from scores, with reasons. `opening=true` opens each
problem instead and prints where the time goes; `<out>/<suite>_opening.jsonl` has the times. Exit status 0:
all were audited or opened; 1: one could not be; 2: the call was wrong.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import build, command, log_to, say
from evaluators.app.device_config import settle_device
from evaluators.app.suite_config import SuiteConfig, SuiteProblems, for_each_problem
from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import cause_of
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.option import option
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.records.opening import Opening, table
from evaluators.records.reference_audit import ReferenceAudit
from evaluators.scheduler.pool import Pool
from evaluators.suites.suite import Suite

FLAT = ("kernelbench", "kernelbench_v02")
GIB = 2**30


@dataclass
class AuditConfig(SuiteConfig):
    """The config of the command."""

    opening: bool = option(False, "time the opening of each problem instead of auditing it")
    out: str = option("outputs/audit", "folder of the results")


@command("evaluators.audit", AuditConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    settle_device(config)
    return asyncio.run((open_all if config.opening else audit_all)(config, Console()))


async def audit_all(config: DictConfig, output: Console) -> int:
    """Audits the problems without a saved audit, one per device at a time, and prints a summary. Returns the
    exit status. Raises UsageError."""
    suite: Suite = build(config.suite)
    name = suite.name.replace("/", "_")
    store = JsonlStore(Path(config.out) / f"{name}.jsonl")
    problems = SuiteProblems(config)
    found: dict[str, ReferenceAudit] = {}
    failed = 0

    async def audit_one(pool: Pool, place: str) -> None:
        nonlocal failed
        if (problem := problems.open(place)) is None:
            return
        known = store.get(problem.id)
        try:
            audit = await pool.audit(problem) if known is None else ReferenceAudit.from_json(known)
        except WorkerBroken as error:
            failed += 1
            say(output, f"{problem.name}: could not be audited: {cause_of(str(error))}")
            return
        if known is None:
            store.put(problem.id, audit.to_json())
        found[place] = audit
        say(output, one_line(audit))

    await for_each_problem(suite, config, build(config.evaluator), audit_one)
    unopened = problems.lines()
    audits = [found[each.problem] for each in suite.entries() if each.problem in found]
    excluded = {each.problem: why_not(each) for each in audits if not each.judges}
    write_atomically(Path(config.out) / f"{name}.csv", as_csv(audits))
    path = Path(config.out) / f"{name}_excluded.json"
    write_atomically(path, json.dumps(excluded, indent=1, sort_keys=True) + "\n")
    say(output, "", *summary(audits), *unopened, f"excluded, with reasons: {path}")
    return 1 if failed or unopened else 0


async def open_all(config: DictConfig, output: Console) -> int:
    """Opens the problems without a saved opening, and prints where the time goes. Returns the exit status.
    Raises UsageError."""
    suite: Suite = build(config.suite)
    store = JsonlStore(Path(config.out) / f"{suite.name.replace('/', '_')}_opening.jsonl")
    problems = SuiteProblems(config)
    found: list[Opening] = []
    failed = 0

    async def open_one(pool: Pool, place: str) -> None:
        nonlocal failed
        if (problem := problems.open(place)) is None:
            return
        known = store.get(problem.id)
        try:
            opening = await pool.opening(problem) if known is None else Opening.from_json(known)
        except WorkerBroken as error:
            failed += not isinstance(error, UnfitProblem)
            say(output, f"{problem.name}: could not be opened: {cause_of(str(error))}")
            return
        if known is None:
            store.put(problem.id, opening.to_json())
        found.append(opening)
        say(output, f"{problem.name}: {opening.total_s:.1f} s")

    await for_each_problem(suite, config, build(config.evaluator), open_one)
    unopened = problems.lines()
    say(output, "", *table(found), *unopened)
    return 1 if failed or unopened else 0


def one_line(found: ReferenceAudit) -> str:
    """The audit of one problem."""
    seconds = f"{sum(found.seconds.values()):.1f} s"
    if not found.judges:
        return f"{found.problem}: cannot judge: {why_not(found)}; {seconds}"
    precision = f"eager {found.eager_error:.1e}" if found.in_float64 else "no float64"
    memory = f", {found.peak_bytes / GIB:.1f} GiB" if found.peak_bytes else ""
    fooled = [f"{rule} accepts {found.fooled(rule)[0]}" for rule in FLAT if found.fooled(rule)]
    return "; ".join([f"{found.problem}: judges, {precision}{memory}", *fooled, seconds])


def why_not(found: ReferenceAudit) -> str:
    """Why a reference cannot judge."""
    if found.unfit:
        return found.unfit
    passing = [each for each in found.lazy if each.passes]
    most = f", and {len(passing) - 1} more" if len(passing) > 1 else ""
    return f"{passing[0].says} pass{most} (normwise difference {passing[0].error:.2g})"


def as_csv(found: Iterable[ReferenceAudit]) -> str:
    """One row per problem. `cannot judge`: the reason, empty if it can judge; `eager error`: normwise,
    against float64; `lazy error`: the smallest error of a lazy answer; then the lazy answers that each of
    KernelBench's rules accepts, and the audit's memory."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["problem", "cannot judge", "eager error", "lazy error", *FLAT, "memory, GiB"])
    for each in found:
        error = f"{each.eager_error:.1e}" if each.in_float64 else ""
        lazy = f"{each.tolerance:.1e}" if each.tolerance is not None else ""
        taken = ["; ".join(each.fooled(rule)) for rule in FLAT]
        why = "" if each.judges else why_not(each)
        rows.writerow([each.problem, why, error, lazy, *taken, f"{each.peak_bytes / GIB:.1f}"])
    return text.getvalue()


def summary(found: list[ReferenceAudit]) -> list[str]:
    """The totals of all audits."""
    judges = [each for each in found if each.judges]
    lines = [
        f"{len(found)} problems: {len(judges)} can judge, {len(found) - len(judges)} cannot",
        f"{sum(each.in_float64 for each in judges)} of them compare answers with float64",
    ]
    for rule in FLAT:
        fooled = [each for each in found if each.fooled(rule)]
        lines.append(f"KernelBench's rule {rule}, on its own inputs, accepts a lazy answer in {len(fooled)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
