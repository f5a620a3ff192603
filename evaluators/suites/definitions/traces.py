"""Verdicts in the format of FlashInfer Trace and SOL-ExecBench: a trace is the verdict on one solution for
one workload."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from evaluators.records.evaluation import CaseResult, Evaluation, Status
from evaluators.records.problem import Problem
from evaluators.suites.definitions.files import Definition
from evaluators.suites.definitions.reference import rows_by_case

STATUSES = {
    Status.CORRECT: "PASSED",
    Status.INCORRECT: "INCORRECT_NUMERICAL",
    Status.COMPILE_ERROR: "COMPILE_ERROR",
    Status.TIMEOUT: "TIMEOUT",
}
"""The status of a trace; any other is RUNTIME_ERROR."""
FORMS = re.compile(r"is (\([^)]*\)) torch\.\w+; the reference's is (\([^)]*\))")
"""How a verdict says that an output has another shape or dtype."""
LIBRARIES = ("torch", "triton", "cuda", "driver")
"""What of an environment are versions of libraries."""


def traces_of(
    solution: str, definition: Definition, problem: Problem, evaluation: Evaluation
) -> Iterator[Mapping[str, Any]]:
    """A trace for each workload that the evaluation tried: those that were timed, and those on which the
    solution fails. One that was checked and not timed has no trace, because one without times has no form. If
    the solution fails on held-out cases alone, which are no workloads, all traces have the verdict on one.

    `max_relative_error` is the normwise error, ‖out − ref‖ / ‖ref‖; `extra` says so. Raises BadReference if
    the definition's files cannot be read.
    """
    rows, name = rows_by_case(definition, problem), definition.read().get("name", definition.name)
    results = evaluation.cases or tuple(
        CaseResult(name=name, weight=1.0, held_out=False, evaluation=evaluation)
        for name in ([each.name for each in problem.cases] or [""])
    )
    now = datetime.now(UTC).isoformat(timespec="seconds")
    known = [each for each in results if each.name in rows]
    elsewhere = None
    if evaluation.status.is_of_the_kernel and not any(each.fails for each in known):
        elsewhere = next((each.evaluation for each in results if each.fails), None)
    for each in known:
        if found := _evaluation(elsewhere or each.evaluation, evaluation.environment, now):
            yield {
                "definition": name,
                "workload": rows[each.name],
                "solution": solution,
                "evaluation": found,
            }


def _evaluation(found: Evaluation, environment: Mapping[str, str], now: str) -> dict[str, Any] | None:
    """The part of a trace with the verdict; None if it has no form there."""
    status, timing, errors = _status(found), found.timing, found.correctness
    if not found.status.is_of_the_kernel or (status == "PASSED" and timing is None):
        return None
    return {
        "status": status,
        "environment": {
            "hardware": environment.get("device", "unknown"),
            "libs": {name: environment[name] for name in LIBRARIES if name in environment},
        },
        "timestamp": now,
        "log": f"{found.rule}: {found.log}" if found.rule else found.log,
        "correctness": {
            "max_relative_error": errors.normwise_error if errors else 0.0,
            "max_absolute_error": (errors.largest_error or 0.0) if errors else 0.0,
            "extra": {
                "max_relative_error": "normwise, against float64" if errors else "not measured: see the log",
            },
        }
        if status in ("PASSED", "INCORRECT_NUMERICAL")
        else None,
        "performance": {
            "latency_ms": timing.kernel_ms,
            "reference_latency_ms": timing.eager_ms,
            "speedup_factor": timing.speedup,
        }
        if timing
        else None,
    }


def _status(found: Evaluation) -> str:
    if found.status is Status.INCORRECT and (forms := FORMS.search(found.log)):
        return "INCORRECT_SHAPE" if forms[1] != forms[2] else "INCORRECT_DTYPE"
    return STATUSES.get(found.status, "RUNTIME_ERROR")
