"""Counts how many wrong kernels the evaluator finds: mutants of the library's kernels and the shipped
references.

    python benchmarks/mutants.py [device=auto] [only=softmax,matmul] [kinds=tail,mask] [kernels=library|torch]
        [count=100] [seed=0] [part=1/3] [limit_s=540] [out=mutants.json]
    python benchmarks/mutants.py honest=true [repeat=3] [device=auto] [only=softmax] [limit_s=540] [out=…]
    python benchmarks/mutants.py merge=mutants1.json,mutants2.json [out=mutants.json]

A mutant is a correct kernel with one change that makes it wrong by more than rounding. `benchmarks/mutations`
makes them, and `benchmarks/witness.py` shows on which inputs each is wrong. A mutant counts as found if it
compiles and is not judged `correct`. Prints the numbers found and in total by kind, then each survivor with
its error and the evaluator's words. `only` selects mutants whose name contains one of its words, `count` that
many at random, `part` those of every third problem; `limit_s` ends the run, and mutants without a verdict are
listed. `out` gets the verdicts as JSON, which `merge` combines. `honest=true` evaluates the library's kernels
and the references themselves, which must all be `correct`. The exit status is 0 when 99 % are found, or all
honest kernels are correct. Uses all visible GPUs.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import mutations
from benchmarks.mutations import KINDS, TORCH, BadEdit, Mutant, mutants
from benchmarks.seeds import CASES
from evaluators.app.command import choose_device
from evaluators.base.languages import language_of
from evaluators.base.usage_error import UsageError
from evaluators.device.settings import Settings
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.timing import Plan
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import Pool

GOAL = 0.99
EVERY = 20
"""Verdicts between two lines of progress."""
HONEST = "honest"


@dataclass(frozen=True, kw_only=True)
class Asked:
    """An evaluation to make, of a kernel whose right verdict is known."""

    name: str
    kind: str
    why: str
    problem: Problem
    kernel: Kernel


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The result; `status` is "" where the time ran out."""

    name: str
    kind: str
    why: str
    status: str
    log: str = ""
    device_s: float = 0.0
    speedup_low: float = 0.0

    @property
    def right(self) -> bool:
        """Whether a mutant was found or an honest kernel judged correct; false for our own failures, and for
        a mutant that does not compile."""
        if self.kind == HONEST:
            return self.status == Status.CORRECT
        unjudged = ("", Status.COMPILE_ERROR, Status.UNFIT_REFERENCE, Status.INFRASTRUCTURE_ERROR)
        return self.status not in (*unjudged, Status.CORRECT)


OPTIONS = {
    "device": "auto",
    "only": "",
    "kinds": "",
    "kernels": "",
    "count": "0",
    "seed": "0",
    "part": "1/1",
    "limit_s": "540",
    "honest": "false",
    "repeat": "1",
    "merge": "",
    "out": "",
}


def main(arguments: Sequence[str]) -> int:
    """Runs the benchmark; returns its exit status."""
    given = options_of(arguments)
    if given["merge"]:
        verdicts = merged(given["merge"].split(","))
    else:
        device, _ = choose_device(given["device"], clustered=False)
        asked = honest(device) if given["honest"] == "true" else of_mutants(mutants(), device)
        verdicts = asyncio.run(judge(choose(asked, given), device, float(given["limit_s"])))
    if given["out"]:
        Path(given["out"]).write_text(json.dumps([vars(each) for each in verdicts], indent=1) + "\n")
    print("\n".join(summary(verdicts)))
    judged = [each for each in verdicts if each.status]
    share = sum(each.right for each in judged) / max(len(judged), 1)
    all_honest = all(each.kind == HONEST for each in verdicts)
    return 0 if len(judged) == len(verdicts) and share >= (1.0 if all_honest else GOAL) else 1


def given_options(arguments: Sequence[str], known: Mapping[str, str]) -> dict[str, str]:
    """The options in `key=value` arguments, with defaults for the others. Raises UsageError."""
    given = dict(known)
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or key not in known:
            raise UsageError(f"{argument!r} is not key=value with a key of {', '.join(known)}")
        given[key] = value
    return given


def options_of(arguments: Sequence[str]) -> dict[str, str]:
    """All options, with defaults for those not given. Raises UsageError."""
    given = given_options(arguments, OPTIONS)
    if unknown := set(given["kinds"].split(",")) - {"", *KINDS}:
        raise UsageError(f"unknown kind {min(unknown)}; known are {', '.join(KINDS)}")
    if given["kernels"] not in ("", "library", "torch"):
        raise UsageError(f"kernels={given['kernels']}; it must be library or torch")
    for key in ("count", "seed", "limit_s", "repeat"):
        if not given[key].isdecimal():
            raise UsageError(f"{key}={given[key]}; it must be a whole number")
    check_part(given["part"])
    return given


def of_mutants(known: Iterable[Mutant], device: str) -> list[Asked]:
    """The evaluations of a device's mutants."""
    return [
        Asked(
            name=each.name,
            kind=each.kind,
            why=each.why,
            problem=mutations.problem_of(each.case),
            kernel=each.kernel,
        )
        for each in known
        if each.case.device == device
    ]


def honest(device: str) -> list[Asked]:
    """The library's kernels on their problems, under the shipped rules, and the references themselves on all
    problems, where any code may run."""
    library = [(case, case.to_kernel().source) for case in CASES if case.device == device]
    references = [
        (replace(mutations.cases_of(TORCH + name)[0], device=device), mutations.source_of(TORCH + name))
        for name in mutations.problems()
    ]
    return [
        Asked(
            name=case.name if case.seed else f"{TORCH}{case.problem} itself",
            kind=HONEST,
            why="",
            problem=mutations.problem_of(case),
            kernel=Kernel(source=source, language=language_of(source)),
        )
        for case, source in [*library, *references]
    ]


def choose(asked: Sequence[Asked], given: dict[str, str]) -> list[Asked]:
    """The evaluations that the options select, problem by problem. Raises UsageError if there are none."""
    kinds, words = given["kinds"].split(","), given["only"].split(",")
    chosen = [
        each
        for each in asked
        if (kinds == [""] or each.kind in kinds)
        and any(word in each.name for word in words)
        and (not given["kernels"] or (given["kernels"] == "torch") is each.name.startswith(TORCH))
    ]
    if not chosen:
        raise UsageError("no kernel has this device, kind and name")
    if count := int(given["count"]):
        chosen = random.Random(int(given["seed"])).sample(chosen, min(count, len(chosen)))
    chosen = part_of(chosen, given["part"])
    repeated = range(int(given["repeat"]) if given["honest"] == "true" else 1)
    return [
        replace(each, name=f"{each.name} #{turn + 1}") if len(repeated) > 1 else each
        for each in chosen
        for turn in repeated
    ]


def part_of(asked: Sequence[Asked], part: str) -> list[Asked]:
    """The part (such as `1/3`) of the problems in their order; no problem is opened for two parts."""
    problems = sorted({each.problem.id for each in asked})
    number, _, parts = part.partition("/")
    mine = problems[int(number) - 1 :: int(parts)]
    return sorted((each for each in asked if each.problem.id in mine), key=lambda each: each.problem.id)


def check_part(part: str) -> None:
    """Raises UsageError unless `part` is like 1/3."""
    number, slash, parts = part.partition("/")
    if not (slash and number.isdecimal() and parts.isdecimal() and 0 < int(number) <= int(parts)):
        raise UsageError(f"part={part}; it must be like 1/3")


def settings_for(device: str) -> Settings:
    """Settings as in a search, but with rough timing of correct kernels."""
    quick = Plan(block_ms=4.0, precision=0.2, max_s=0.2)
    if device == "cuda":
        return Settings(timeout_s=30.0, compile_mode="", plan=quick, max_calls=64)
    return Settings(timeout_s=60.0, compile_mode="", plan=quick, max_calls=16, threads=1)


async def judge(
    asked: Sequence[Asked], device: str, limit_s: float, settings: Settings | None = None
) -> list[Verdict]:
    """The verdicts in the order of `asked`; builds run during measurements."""
    began = time.monotonic()
    pool = Pool(LocalHost(settings=settings or settings_for(device), on_gpu=device == "cuda"))
    verdicts: dict[int, Verdict] = {}

    async def one(number: int, each: Asked) -> None:
        found = await pool.evaluate(each.problem, each.kernel)
        verdicts[number] = verdict = verdict_of(each, found)
        if not verdict.right:
            print(f"{verdict.name}: {verdict.status}", flush=True)
        if len(verdicts) % EVERY == 0:
            wall_s = time.monotonic() - began
            print(f"{len(verdicts)} of {len(asked)} after {wall_s:.0f} s", file=sys.stderr, flush=True)

    tasks = [asyncio.ensure_future(one(number, each)) for number, each in enumerate(asked)]
    _, late = await asyncio.wait(tasks, timeout=limit_s)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    for task in set(tasks) - late:
        task.result()
    pool.close()
    print(f"{len(verdicts)} verdicts in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return [
        verdicts.get(number)
        or Verdict(name=each.name, kind=each.kind, why=each.why, status="", log="no verdict in time")
        for number, each in enumerate(asked)
    ]


def verdict_of(each: Asked, found: Evaluation) -> Verdict:
    """The part of an evaluation to keep: the start of its log, and its errors."""
    log = " ".join(found.log.split())[:600]
    if found.correctness is not None:
        error, eager = found.correctness.normwise_error, found.correctness.eager_error
        log = f"normwise error {error:.2g}, eager's {eager:.2g}. {log}"
    return Verdict(
        name=each.name,
        kind=each.kind,
        why=each.why,
        status=found.status.value,
        log=f"{found.rule} {log}".strip(),
        device_s=found.device_s,
        speedup_low=found.timing.speedup_low if found.timing else 0.0,
    )


def merged(files: Sequence[str]) -> list[Verdict]:
    """The results of several output files. Raises UsageError."""
    try:
        return [Verdict(**each) for file in files for each in json.loads(Path(file).read_text())]
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"merge: {error}") from error


def summary(verdicts: Sequence[Verdict]) -> list[str]:
    """A Markdown table by kind, and a paragraph per wrong verdict."""
    judged = [each for each in verdicts if each.status]
    lines = ["| kind | | found | of | verdicts |", "|---|---|---|---|---|"]
    words = KINDS | {HONEST: "right kernels, `correct`"}
    for kind in [kind for kind in words if any(each.kind == kind for each in judged)]:
        of_kind = [each for each in judged if each.kind == kind]
        statuses = Counter(each.status for each in of_kind)
        cells = (
            kind,
            words[kind],
            str(sum(each.right for each in of_kind)),
            str(len(of_kind)),
            ", ".join(f"{status} {count}" for status, count in statuses.most_common()),
        )
        lines.append(f"| {' | '.join(cells)} |")
    right = sum(each.right for each in judged)
    lines.append(f"| all | | {right} | {len(judged)} | {right / max(len(judged), 1):.1%} |")
    for each in verdicts:
        if not each.right:
            lines += ["", f"{each.name}: {each.status or 'no verdict'}. {each.why}", f"    {each.log}"]
    return lines


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except (UsageError, BadEdit) as error:
        sys.exit(f"mutants.py: {error}")
    sys.stdout.flush()
    os._exit(status)  # a thread may still be measuring
