"""A verdict in five stages, by its cases, distributions and repeats."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.records.evaluation import CaseResult, Correctness, Evaluation, Status
from evaluators.records.five_stages import five_stages
from tests.evaluators.records.test_cases import correct

RIGHT = correct(2.0)
REPEATED = replace(RIGHT, correctness=replace(RIGHT.correctness, spread=0.0))  # type: ignore[arg-type]
UNSTABLE = Evaluation(
    status=Status.INCORRECT,
    correctness=Correctness(
        checked_calls=1, normwise_error=1e-7, eager_error=1e-7, distributions={"small": True, "large": False}
    ),
)
WRONG = Evaluation(status=Status.INCORRECT)


def case(evaluation: Evaluation, *, held_out: bool = False) -> CaseResult:
    return CaseResult(name="n", weight=0.0 if held_out else 1.0, held_out=held_out, evaluation=evaluation)


def stages(*cases: CaseResult, status: Status = Status.INCORRECT) -> list[str]:
    return list(five_stages(Evaluation(status=status, cases=cases)).values())


def test_a_problem_without_cases_is_one_case() -> None:
    assert five_stages(REPEATED) == {
        "smoke": "passes",
        "shapes and types": "passes",
        "stability": "passes",
        "determinism": "equal",
        "edges": "not tried",
    }


def test_each_stage_can_fail_alone() -> None:
    drawn = case(RIGHT, held_out=True)
    apart = replace(RIGHT, correctness=replace(RIGHT.correctness, spread=3e-8))  # type: ignore[arg-type]
    assert stages(case(WRONG), case(RIGHT), drawn)[:2] == ["fails", "fails"]
    assert stages(case(RIGHT), case(WRONG), drawn)[:2] == ["passes", "fails"]
    assert stages(case(RIGHT), case(UNSTABLE), drawn)[:3] == ["passes", "passes", "fails"]
    assert stages(case(RIGHT), case(apart))[3] == "differs by 3e-08"
    assert stages(case(RIGHT), case(WRONG, held_out=True))[4] == "fails"
    assert stages(case(RIGHT), drawn)[4] == "passes"


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMEOUT, Status.COMPILE_ERROR])
def test_a_kernel_that_does_not_run_fails_the_smoke_test(status: Status) -> None:
    assert list(five_stages(Evaluation(status=status)).values()) == [
        *("fails", "fails"),
        *("not tried",) * 3,
    ]


def test_an_infrastructure_error_says_nothing_about_the_kernel() -> None:
    found = five_stages(Evaluation(status=Status.INFRASTRUCTURE_ERROR))
    assert {*found.values()} == {"not tried"}
