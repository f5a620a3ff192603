"""Scores a folder of operators' kernels in BackendBench's layout: `ideatree score operators=<folder>`.

Every version of an operator is evaluated on all of the operator's cases in a suite. An operator counts as
correct if its best version is right in all cases. Each evaluation is saved at once as a line of
`evaluations.jsonl`, and a repeated call skips saved ones. At the end, or after an interrupt,
`operator_scores.json` has the measures, `operators.csv` a row per version, and `operator_cases.csv` a row per
case.
"""

from __future__ import annotations

import asyncio
import csv
import functools
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omegaconf import DictConfig
from rich.console import Console

from evaluators.app.command import build, say
from evaluators.app.device_config import host_of
from evaluators.app.suite_config import all_of, chosen, entries_of, evaluate_once, operator_opener
from evaluators.base.atomic_write import write_atomically
from evaluators.base.jsonl_store import JsonlStore
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.five_stages import five_stages
from evaluators.records.overhead import NEAR, bound_cases, cheapest_call, floor_of, speedup_beyond
from evaluators.records.problem import Problem, reference_kernel
from evaluators.records.scores import Estimate, Scored, correct, fast_p, geometric_mean
from evaluators.scheduler.pool import Pool
from evaluators.suites.operator_folder import ATEN, Version, versions_in
from evaluators.suites.operators import OperatorSuite
from evaluators.suites.traced.call import DTYPES

THRESHOLDS = (0.0, 0.5, 1.0, 1.5, 2.0)
"""The values of p in perf@p."""
AHEAD = 2
"""Operators that are opened while others are on a device. Opening hundreds at once would delay the first
result by minutes."""
COLUMNS = ("operator", "version", "status", "cases", "pass", "timed", "speedup", "low", "high", "cause")
CASE_COLUMNS = (
    *("operator", "version", "case", "dtype", "held_out", "weight"),
    *("status", "speedup", "low", "high"),
)


@dataclass(frozen=True, kw_only=True)
class JudgedVersion:
    """A version with its evaluation and the names of its operator's cases, without those whose reference
    turned out to be unable to judge."""

    version: Version
    cases: Sequence[str]
    evaluation: Evaluation

    @property
    def passed(self) -> list[str]:
        """The cases in which it is right. Cases that were not tried after failures do not count."""
        right = {each.name for each in self.evaluation.cases if each.passes}
        return [name for name in self.cases if name in right]

    @property
    def cause(self) -> str:
        """Why it is not correct; "" if it is."""
        return "" if self.evaluation.status is Status.CORRECT else self.evaluation.cause

    @property
    def speedup(self) -> float:
        """The speedup over eager; 0 if it is not correct."""
        return self.evaluation.speedup


async def score_operators(config: DictConfig, output: Console) -> int:
    """Evaluates the versions without a saved evaluation, writes the files and prints a summary. Returns the
    command's exit status. Raises UsageError."""
    suite = build(config.suite)
    if not isinstance(suite, OperatorSuite):
        raise UsageError(f"suite={suite.name} has no operators; choose one like operators/opinfo")
    versions, strangers = _chosen(config, suite)
    folder = Path("outputs/operators" if config.operators == ATEN else config.operators)
    folder.mkdir(parents=True, exist_ok=True)
    store = JsonlStore(folder / "evaluations.jsonl")
    host = host_of(config)
    turns = asyncio.Semaphore(host.devices + AHEAD)
    if config.operators == ATEN:
        config.problem.libraries = "any"
    open_operator = operator_opener(suite.name, device=config.device, rules=config.problem)

    @functools.cache
    def opened(operator: str) -> Problem | UsageError:
        try:
            return open_operator(operator)
        except UsageError as error:
            return error

    async def judge(pool: Pool, version: Version) -> JudgedVersion:
        problem = opened(version.operator)
        if isinstance(problem, UsageError):
            evaluation = Evaluation(status=Status.UNFIT_REFERENCE, log=str(problem))
            return JudgedVersion(version=version, cases=[], evaluation=evaluation)
        evaluation = await _evaluate(pool, problem, version, store, suite.name)
        results = evaluation.cases
        dropped = {each.name for each in results if each.evaluation.status is Status.UNFIT_REFERENCE}
        cases = [each.name for each in problem.cases if each.name not in dropped]
        return JudgedVersion(version=version, cases=cases, evaluation=evaluation)

    judged: dict[Version, JudgedVersion] = {}
    floor_ms = 0.0

    async def judge_in_turn(pool: Pool, version: Version) -> None:
        async with turns:
            judged[version] = await judge(pool, version)
        say(output, f"{len(judged)} of {len(versions)}: {_one_line(judged[version])}")

    def written() -> list[str]:
        return _written(folder, [judged[each] for each in versions if each in judged], strangers, floor_ms)

    with Pool(host) as pool:
        if config.problem.timed is not False:
            floor_ms = await _floor(pool, store, config.device)
        try:
            await all_of(judge_in_turn(pool, each) for each in versions)
        except asyncio.CancelledError:
            if judged:
                done = f"{len(judged)} of {len(versions)} versions"
                say(output, *written(), f"{done}: repeat the call to continue")
            raise
    errors = [each for each in (opened(one.operator) for one in versions) if isinstance(each, UsageError)]
    if len(errors) == len(versions):  # the call is wrong rather than an operator
        raise errors[0]
    say(output, *written())
    return 0 if all(each.evaluation.status.is_of_the_kernel for each in judged.values()) else 1


def _chosen(config: DictConfig, suite: OperatorSuite) -> tuple[list[Version], list[str]]:
    """The selected versions of the suite's operators, and selected operators that the suite does not have.
    Raises UsageError."""
    known = [each.problem.rpartition("/")[2] for each in entries_of(suite)]
    if config.operators == ATEN:
        found = [Version(operator=each, name=ATEN, path=None) for each in known]
    else:
        found = versions_in(Path(config.operators))
        if not found:
            raise UsageError(
                f"operators={config.operators} has no files like add__Tensor/add__Tensor_implementation_v1.py"
            )
    names = sorted({f"{suite.name}/{each.operator}" for each in found})
    source = f"the suite {suite.name}" if config.operators == ATEN else config.operators
    wanted = chosen(names, config.only, source)
    found = [each for each in found if f"{suite.name}/{each.operator}" in wanted]
    strangers = sorted({each.operator for each in found} - {*known})
    found = [each for each in found if each.operator in known]
    if not found:
        raise UsageError(f"{source}: the suite {suite.name} has none of these operators; set suite=…")
    return found, strangers


async def _evaluate(
    pool: Pool, problem: Problem, version: Version, store: JsonlStore, suite: str
) -> Evaluation:
    try:
        kernel = version.kernel(suite)
    except (OSError, ValueError) as error:
        return Evaluation(status=Status.COMPILE_ERROR, log=str(error))
    key = f"{version.operator}/{version.name} {problem.id} {kernel.id}"
    return await evaluate_once(pool, problem, kernel, store, key)


async def _floor(pool: Pool, store: JsonlStore, device: str) -> float:
    """See `floor_of`."""
    problem = cheapest_call(device)
    kernel = reference_kernel(problem)
    key = f"the cheapest call {problem.id} {kernel.id}"
    return floor_of(await evaluate_once(pool, problem, kernel, store, key))


def _one_line(judged: JudgedVersion) -> str:
    found, name = judged.evaluation, f"{judged.version.operator} {judged.version.name}"
    if (timing := found.timing) is None:
        passed = f"{len(judged.passed)} of {len(judged.cases)} cases pass"
        why = f": {judged.cause}" if judged.cause else ""
        return f"{name}: {found.status.value}, {passed}{why}"
    interval = f"{timing.speedup:.2f}x [{timing.speedup_low:.2f}, {timing.speedup_high:.2f}]"
    return f"{name}: {found.status.value} on {len(judged.cases)} cases, {interval}"


def _written(
    folder: Path, judged: Sequence[JudgedVersion], strangers: Sequence[str], floor_ms: float
) -> list[str]:
    """Writes the files; returns the lines of a summary."""
    unfit = {
        each.version.operator: each.evaluation.cause
        for each in judged
        if each.evaluation.status is Status.UNFIT_REFERENCE
    }
    failed = {
        f"{each.version.operator} {each.version.name}": each.evaluation.cause
        for each in judged
        if each.evaluation.status is Status.INFRASTRUCTURE_ERROR
    }
    best = best_of([each for each in judged if each.evaluation.status.is_of_the_kernel])
    found = measures(best, floor_ms)
    bound = {name: bound_cases(each.evaluation, floor_ms) for name, each in best.items()}
    shares = sorted(_by_type(best.values()).items())
    types = {dtype: f"{passed} of {total}" for dtype, (passed, total) in shares}
    counts = dict(Counter(each.evaluation.status.value for each in judged).most_common())
    left_out = {**unfit, **dict.fromkeys(strangers, "the suite has no such operator")}
    body = {
        "operators": {name: _row(each) for name, each in best.items()},
        "measures": {name: each.to_json() for name, each in found.items()},
        "cases that pass, by type": types,
        "statuses": counts,
        "floor_ms": floor_ms,
        "cases bound by overhead": {name: cases for name, cases in bound.items() if cases},
        "left out": left_out,
        "not judged": failed,
    }
    write_atomically(folder / "operator_scores.json", json.dumps(body, indent=1) + "\n")
    write_atomically(folder / "operators.csv", _csv(COLUMNS, map(_version_row, judged)))
    write_atomically(folder / "operator_cases.csv", _csv(CASE_COLUMNS, _case_rows(judged)))
    statuses = ", ".join(f"{status} {count}" for status, count in counts.items())
    return [
        "",
        f"{len(judged)} versions of {len(best)} operators ({statuses})",
        *(f"{name:<18}{each}" for name, each in found.items()),
        *(f"cases of {dtype}: {share} pass" for dtype, share in types.items()),
        *(f"left out: {name}: {why}" for name, why in left_out.items()),
        *(f"not judged: {name}: {why}" for name, why in failed.items()),
        *([_overhead_line(bound, floor_ms)] if floor_ms else []),
        f"{folder}/operator_scores.json, operators.csv, operator_cases.csv",
    ]


def _overhead_line(bound: Mapping[str, Sequence[str]], floor_ms: float) -> str:
    return (
        f"{sum(map(len, bound.values()))} timed cases are bound by overhead: eager takes less than "
        f"{NEAR:g} times the cheapest call's {floor_ms:.3g} ms"
    )


def best_of(judged: Sequence[JudgedVersion]) -> dict[str, JudgedVersion]:
    """Each operator's fastest correct version, or else the one that is right in most cases."""
    best: dict[str, JudgedVersion] = {}
    for each in judged:
        known = best.get(each.version.operator)
        if known is None or _rank(each) > _rank(known):
            best[each.version.operator] = each
    return best


def _rank(judged: JudgedVersion) -> tuple[float, int]:
    return judged.speedup, len(judged.passed)


def measures(best: Mapping[str, JudgedVersion], floor_ms: float = 0.0) -> dict[str, Estimate]:
    """Measures over operators, each with its best version: the share that is correct in all cases, the
    geometric mean of their speedups, with and without the cases that are bound by overhead, and perf@p, the
    share that is correct and has a speedup above p. If nothing was timed, only the share. `floor_ms`: the
    time of the cheapest call."""
    right = {name: each.evaluation.status is Status.CORRECT for name, each in best.items()}
    share = correct([Scored(problem=name, speedups=[each], compiled=[True]) for name, each in right.items()])
    if any(right.values()) and not any(each.evaluation.timing for each in best.values()):
        return {"correct": share}
    beyond = {name: speedup_beyond(each.evaluation, floor_ms) for name, each in best.items()}
    rest = [
        Scored(problem=name, speedups=[value], compiled=[True]) for name, value in beyond.items() if value
    ]
    scored = [Scored(problem=name, speedups=[each.speedup], compiled=[True]) for name, each in best.items()]
    return {
        "correct": share,
        "geometric mean": geometric_mean(scored),
        "without overhead": geometric_mean(rest),
        **{f"perf@{p:g}": fast_p(scored, p) for p in THRESHOLDS},
    }


def _by_type(best: Iterable[JudgedVersion]) -> dict[str, tuple[int, int]]:
    """The number of passed cases and of all cases, by the dtype of a case's first tensor."""
    found: dict[str, tuple[int, int]] = {}
    for judged in best:
        right = {*judged.passed}
        for case in judged.cases:
            passed, total = found.get(_dtype(case), (0, 0))
            found[_dtype(case)] = passed + (case in right), total + 1
    return found


def _dtype(case: str) -> str:
    """The dtype of the first tensor in a case's name."""
    matched = re.search(r"T\(\[[^\]]*\], (\w+)", case)
    return DTYPES.get(matched[1], "") if matched else ""


def _row(judged: JudgedVersion) -> dict[str, object]:
    timing = judged.evaluation.timing
    return {
        "version": judged.version.name,
        "status": judged.evaluation.status.value,
        "cause": judged.cause,
        "cases": len(judged.cases),
        "pass": len(judged.passed),
        "stages": dict(five_stages(judged.evaluation)),
        "speedup": timing.speedup if timing else 0.0,
        "low": timing.speedup_low if timing else 0.0,
        "high": timing.speedup_high if timing else 0.0,
    }


def _csv(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return text.getvalue()


def _version_row(judged: JudgedVersion) -> Sequence[object]:
    found = judged.evaluation
    timed = sum(each.evaluation.timing is not None for each in found.cases)
    name = judged.version.operator, judged.version.name, found.status.value
    return *name, len(judged.cases), len(judged.passed), timed, *_times(found), judged.cause


def _case_rows(judged: Sequence[JudgedVersion]) -> Iterator[Sequence[object]]:
    for each in judged:
        for case in each.evaluation.cases:
            found = case.evaluation
            name = each.version.operator, each.version.name, case.name, _dtype(case.name)
            yield *name, case.held_out, case.weight, found.status.value, *_times(found)


def _times(found: Evaluation) -> Sequence[object]:
    """The speedup and its interval with four digits; empty if nothing was timed."""
    timing = found.timing
    if timing is None:
        return "", "", ""
    return tuple(f"{each:.4g}" for each in (timing.speedup, timing.speedup_low, timing.speedup_high))
