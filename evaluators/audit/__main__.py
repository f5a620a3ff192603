"""Which problems of a suite can judge kernels, with figures:

    python -m evaluators.audit suite=kernelbench/level1
    python -m evaluators.audit suite=kernelbench/level1 only=[23,40] problem.tolerance=strict
    python -m evaluators.audit suite=shipped device=cpu out=my_audit
    python -m evaluators.audit suite=shipped opening=true

A reference cannot judge where an answer that leaves something out passes for right: zeros, constants, the
outputs for other inputs, an input as it is, answers that use one half of it. Each audit is kept at once, as a
line of `<out>/<suite>.jsonl`; what is there is not audited again. `<out>/<suite>.csv` is the table of all,
`<out>/<suite>_excluded.json` names the problems that scores are to leave out, with the reason of each. With
`opening=true` the problems are opened for kernels instead, each once, and a table says where the time of that
goes; kept is each opening, as a line of `<out>/<suite>_opening.jsonl`. Exit status 0 when all were audited,
or opened, 1 when one could not be, 2 when the call was wrong.
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
from evaluators.app.suite_config import SuiteConfig, for_each_problem, open_problem
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

    opening: bool = option(False, "open the problems instead, and say where the time of that goes")
    out: str = option("outputs/audit", "the folder of what is found")


@command("evaluators.audit", AuditConfig, __doc__)
def main(config: DictConfig) -> int:
    """The command; returns its exit status."""
    log_to(Console(stderr=True))
    settle_device(config)
    return asyncio.run((open_all if config.opening else audit_all)(config, Console()))


async def audit_all(config: DictConfig, output: Console) -> int:
    """Audits what has not been yet, as many at a time as there are devices, and says what came of all.
    Returns the exit status. Raises UsageError."""
    suite: Suite = build(config.suite)
    name = suite.name.replace("/", "_")
    file = JsonlStore(Path(config.out) / f"{name}.jsonl")
    found: dict[str, ReferenceAudit] = {}
    failed = 0

    async def audit_one(pool: Pool, place: str) -> None:
        nonlocal failed
        problem = open_problem(place, device=config.device, rules=config.problem)
        kept = file.get(problem.id)
        if kept is None:
            try:
                found[place] = await pool.audit(problem)
            except WorkerBroken as error:
                failed += 1
                say(output, f"{problem.name}: could not be audited: {cause_of(str(error))}")
                return
            file.put(problem.id, found[place].to_json())
        else:
            found[place] = ReferenceAudit.from_json(kept)
        say(output, in_a_line(found[place]))

    await for_each_problem(suite, config, build(config.evaluator), audit_one)
    audits = [found[each.problem] for each in suite.entries() if each.problem in found]
    excluded = {each.problem: why_not(each) for each in audits if not each.judges}
    write_atomically(Path(config.out) / f"{name}.csv", as_csv(audits))
    path = Path(config.out) / f"{name}_excluded.json"
    write_atomically(path, json.dumps(excluded, indent=1, sort_keys=True) + "\n")
    say(output, "", *summary(audits), f"excluded, with reasons: {path}")
    return 1 if failed else 0


async def open_all(config: DictConfig, output: Console) -> int:
    """Opens all that have not been yet, and says where the time goes. Returns the exit status. Raises
    UsageError."""
    suite: Suite = build(config.suite)
    file = JsonlStore(Path(config.out) / f"{suite.name.replace('/', '_')}_opening.jsonl")
    found: list[Opening] = []
    failed = 0

    async def open_one(pool: Pool, place: str) -> None:
        nonlocal failed
        problem = open_problem(place, device=config.device, rules=config.problem)
        kept = file.get(problem.id)
        try:
            opening = await pool.opening(problem) if kept is None else Opening.from_json(kept)
        except WorkerBroken as error:
            failed += not isinstance(error, UnfitProblem)
            say(output, f"{problem.name}: could not be opened: {cause_of(str(error))}")
            return
        if kept is None:
            file.put(problem.id, opening.to_json())
        found.append(opening)
        say(output, f"{problem.name}: {opening.total_s:.1f} s")

    await for_each_problem(suite, config, build(config.evaluator), open_one)
    say(output, "", *table(found))
    return 1 if failed else 0


def in_a_line(found: ReferenceAudit) -> str:
    """One problem."""
    seconds = f"{sum(found.seconds.values()):.1f} s"
    if not found.judges:
        return f"{found.problem}: cannot judge: {why_not(found)}; {seconds}"
    precision = f"eager {found.eager_error:.1e}" if found.in_float64 else "no float64"
    memory = f", {found.peak_bytes / GIB:.1f} GiB" if found.peak_bytes else ""
    fooled = [f"{rule} takes {found.fooled(rule)[0]}" for rule in FLAT if found.fooled(rule)]
    return "; ".join([f"{found.problem}: judges, {precision}{memory}", *fooled, seconds])


def why_not(found: ReferenceAudit) -> str:
    """Why a reference cannot judge."""
    if found.unfit:
        return found.unfit
    passing = [each for each in found.lazy if each.passes]
    most = f", and {len(passing) - 1} more" if len(passing) > 1 else ""
    return f"{passing[0].says} pass{most} (normwise difference {passing[0].error:.2g})"


def as_csv(found: Iterable[ReferenceAudit]) -> str:
    """A row a problem. `cannot judge`: why, empty where it can; `eager error`: normwise, against float64;
    `lazy error`: the smallest of a lazy answer's; which of those each of KernelBench's rules takes; memory
    of the audit."""
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
    """All of them."""
    judges = [each for each in found if each.judges]
    lines = [
        f"{len(found)} problems: {len(judges)} can judge, {len(found) - len(judges)} cannot",
        f"answers are compared with float64 in {sum(each.in_float64 for each in judges)} of them",
    ]
    for rule in FLAT:
        fooled = [each for each in found if each.fooled(rule)]
        lines.append(f"KernelBench's rule {rule}, on its own inputs, takes a lazy answer in {len(fooled)}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
