"""Scores a folder of solutions of FlashInfer Trace or SOL-ExecBench: `ideatree score solutions=<folder>`.

Each solution is judged on its definition, in the folder that the set's environment variable names. Each
evaluation is saved at once as a line of `evaluations.jsonl`, and a repeated call skips saved ones. At the
end, or after an interrupt, `solution_scores.json` has each author's measures, `solutions.csv` a row per
solution, and `traces/<group>/<definition>.jsonl` the verdicts in the format of the set.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import say
from evaluators.app.device_config import host_of
from evaluators.app.suite_config import SuiteProblems, all_of, evaluate_once
from evaluators.base.atomic_write import write_atomically
from evaluators.base.cause import first_line
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.languages import language_of
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.scores import Estimate, Scored, correct, fast_p, geometric_mean, roofline, sol_score
from evaluators.scheduler.pool import Pool
from evaluators.suites.definitions.files import solution_at
from evaluators.suites.definitions.solutions import BadSolution, SolutionFile, read_solution
from evaluators.suites.definitions.traces import traces_of

COLUMNS = (
    *("definition", "solution", "author", "status", "speedup", "low", "high"),
    *("vs_compile", "roofline_share", "sol_score", "cause"),
)
FAST = (1.0, 2.0)
"""The values of p in fast_p."""


@dataclass(frozen=True, kw_only=True)
class JudgedSolution:
    """A solution with its problem, which is None if it could not be opened, and its evaluation."""

    solution: SolutionFile
    problem: Problem | None
    evaluation: Evaluation


async def score_solutions(config: DictConfig, output: Console) -> int:
    """Evaluates the solutions without a saved evaluation, writes the files and prints a summary. Returns the
    command's exit status. Raises UsageError."""
    folder = Path(config.solutions)
    solutions, refused = solutions_in(folder)
    say(output, *(f"skipped: {name}: {why}" for name, why in refused.items()))
    store = JsonlStore(folder / "evaluations.jsonl")
    problems = SuiteProblems(config)
    for each in solutions:
        problems.open(each.definition.problem)
    problems.lines()
    judged: list[JudgedSolution] = []

    async def judge_one(pool: Pool, solution: SolutionFile) -> None:
        name = solution.definition.problem
        problem = problems.open(name)
        if problem is None:
            evaluation = Evaluation(status=Status.UNFIT_REFERENCE, log=str(problems.errors[name]))
        else:
            kernel = Kernel(source=solution.source, language=language_of(solution.source))
            key = f"{problem.id} {kernel.id} {'thorough' if config.thorough else 'quick'}"
            evaluation = await evaluate_once(
                pool, problem, kernel, store, key, thorough=bool(config.thorough)
            )
        judged.append(JudgedSolution(solution=solution, problem=problem, evaluation=evaluation))
        say(output, f"{len(judged)} of {len(solutions)}: {_one_line(judged[-1])}")

    def written() -> list[str]:
        order = {id(each): number for number, each in enumerate(solutions)}
        return write(folder, sorted(judged, key=lambda each: order[id(each.solution)]))

    with Pool(host_of(config)) as pool:
        try:
            await all_of(judge_one(pool, each) for each in solutions)
        except asyncio.CancelledError:
            if judged:
                done = f"{len(judged)} of {len(solutions)} solutions"
                say(output, *written(), f"{done}: repeat the call to continue")
            raise
    say(output, *written())
    return 0 if all(each.evaluation.status.is_of_the_kernel for each in judged) else 1


def solutions_in(folder: Path) -> tuple[list[SolutionFile], dict[str, str]]:
    """The solutions below a folder, and why others cannot be judged. Raises UsageError if there are none."""
    found, refused = list[SolutionFile](), dict[str, str]()
    for path in filter(solution_at, sorted(folder.rglob("*.json"))):
        try:
            found.append(read_solution(path))
        except (BadSolution, OSError) as error:
            refused[str(path.relative_to(folder))] = first_line(error)
    if not found:
        why = f": {next(iter(refused.values()))}" if refused else ""
        raise UsageError(f"solutions={folder} has no solutions that can be judged{why}")
    return found, refused


def write(folder: Path, judged: Sequence[JudgedSolution]) -> list[str]:
    """Writes the traces, `solutions.csv` and `solution_scores.json`; returns the lines of a summary."""
    traces: dict[Path, list[str]] = {}
    for each in judged:
        if each.problem is not None:
            definition = each.solution.definition
            path = folder / "traces" / definition.group / f"{definition.name}.jsonl"
            found = traces_of(each.solution.name, definition, each.problem, each.evaluation)
            traces.setdefault(path, []).extend(json.dumps(row) for row in found)
    for path, rows in traces.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, "".join(f"{row}\n" for row in rows))
    table = io.StringIO()
    lines = csv.writer(table)
    lines.writerow(COLUMNS)
    lines.writerows(map(_row, judged))
    write_atomically(folder / "solutions.csv", table.getvalue())
    authors = {
        author: _measures([each for each in judged if each.solution.author == author])
        for author in dict.fromkeys(each.solution.author for each in judged)
    }
    statuses = Counter(each.evaluation.status.value for each in judged)
    body = {
        "authors": {author: {k: v.to_json() for k, v in each.items()} for author, each in authors.items()},
        "statuses": dict(statuses.most_common()),
    }
    write_atomically(folder / "solution_scores.json", json.dumps(body, indent=1) + "\n")
    names = [name for each in authors.values() for name in each]
    shown = list(dict.fromkeys(names))
    return [
        "",
        f"{'author':<24}" + "".join(f"{name:>16}" for name in shown),
        *(
            f"{author:<24}" + "".join(f"{_short(each.get(name)):>16}" for name in shown)
            for author, each in authors.items()
        ),
        f"{len(judged)} solutions: {', '.join(f'{name} {count}' for name, count in statuses.most_common())}",
        f"{folder}/solution_scores.json, solutions.csv, traces/",
    ]


def _measures(judged: Sequence[JudgedSolution]) -> Mapping[str, Estimate]:
    """An author's measures over definitions, with the solutions to one definition as samples."""
    by_problem: dict[str, list[Evaluation]] = {}
    for each in judged:
        if each.evaluation.status.is_of_the_kernel:
            by_problem.setdefault(each.solution.definition.problem, []).append(each.evaluation)
    problems = [Scored.of(problem, found) for problem, found in by_problem.items()]
    if not problems:
        return {}
    return {
        "correct": correct(problems),
        "mean": geometric_mean(problems),
        **{f"fast_{p:g}": fast_p(problems, p) for p in FAST},
        "roofline": roofline(problems),
        "SOL score": sol_score(problems),
    }


def _row(each: JudgedSolution) -> list[object]:
    found, timing = each.evaluation, each.evaluation.timing
    return [
        each.solution.definition.problem,
        each.solution.name,
        each.solution.author,
        found.status.value,
        *([timing.speedup, timing.speedup_low, timing.speedup_high] if timing else [""] * 3),
        (timing.speedup_vs_compile or "") if timing else "",
        found.roofline_share or "",
        found.sol_score or "",
        "" if found.status is Status.CORRECT else found.cause,
    ]


def _one_line(each: JudgedSolution) -> str:
    found = each.evaluation
    what = f"{each.solution.name} of {each.solution.definition.problem}: {found.status.value}"
    if (timing := found.timing) is not None:
        return f"{what}, {timing.speedup:.2f}x [{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
    return f"{what}: {found.cause}" if found.status is not Status.CORRECT else what


def _short(estimate: Estimate | None) -> str:
    return "-" if estimate is None else str(estimate).partition(" [")[0].partition(" (")[0]
