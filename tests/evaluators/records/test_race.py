"""What the two stages of a race say of a kernel, and when a verdict may be reused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.records.evaluation import (
    CaseResult,
    ConfigurationResult,
    Correctness,
    Evaluation,
    Status,
    Timing,
)
from evaluators.records.race import (
    Threshold,
    after_quick_stage,
    answers,
    reaches,
    upper_end,
    with_quick_stage,
)

TIMING = Timing(
    kernel_ms=1.0,
    eager_ms=2.0,
    speedup=2.0,
    speedup_low=1.9,
    speedup_high=2.1,
    kernel_samples_ms=(1.0,) * 6,
    eager_samples_ms=(2.0,) * 6,
)
RIGHT = Evaluation(
    status=Status.CORRECT,
    timing=TIMING,
    correctness=Correctness(checked_calls=5, normwise_error=0.0, eager_error=0.0),
    device_s=1.0,
    stages_s={"timing": 1.0},
)


def test_the_quick_stage_leaves_nothing_that_says_correct() -> None:
    of_case = CaseResult(name="small", weight=1.0, held_out=False, evaluation=RIGHT)
    chosen = ConfigurationResult(values={"BLOCK": 64}, chosen=True)
    found = after_quick_stage(replace(RIGHT, cases=(of_case,), configurations=(chosen,)), None)
    assert found.status is Status.OUTPACED
    assert (found.speedup, found.cases, found.configurations) == (0.0, (), ())
    assert Status.CORRECT.value not in str(found.to_json()).replace("'correctness'", "")
    assert found.quick is not None
    assert found.quick.timing.speedup == 2.0
    assert not found.quick.timing.kernel_samples_ms
    assert "5 calls" in found.cause
    assert "2x eager" in found.cause


@pytest.mark.parametrize("status", [Status.INCORRECT, Status.CRASHED, Status.INFRASTRUCTURE_ERROR])
def test_a_failure_in_the_quick_stage_is_the_verdict(status: Status) -> None:
    failed = Evaluation(status=status, log="why")
    assert after_quick_stage(failed, None) is failed
    assert not reaches(failed, 0.5)
    assert upper_end(failed) == 0.0


@pytest.mark.parametrize(("threshold", "reached"), [(2.1, True), (2.0, True), (2.2, False), (None, False)])
def test_the_upper_end_decides(threshold: Threshold, reached: bool) -> None:
    assert reaches(after_quick_stage(RIGHT, threshold), threshold) is reached


@pytest.mark.parametrize(
    ("own", "asked", "reusable"),
    [
        (2.2, 2.2, True),
        (2.2, 3.0, True),
        (2.2, None, True),
        (2.2, 1.0, False),
        (2.2, 0.0, False),
        (None, None, True),
        (None, 3.0, False),
    ],
)
def test_a_verdict_is_reused_where_its_threshold_was_as_strict(
    own: Threshold, asked: Threshold, reusable: bool
) -> None:
    assert answers(after_quick_stage(RIGHT, own), asked) is reusable
    assert answers(RIGHT, asked)  # a full verdict always is


def test_the_full_verdict_has_the_seconds_of_both_stages() -> None:
    quick = after_quick_stage(RIGHT, None)
    full = replace(RIGHT, device_s=2.0, build_s=0.5, stages_s={"timing": 1.5, "counting": 0.5})
    both = with_quick_stage(full, quick)
    assert (both.device_s, both.build_s) == (3.0, 0.5)
    assert both.stages_s == {"timing": 2.5, "counting": 0.5}
    assert both.status is Status.CORRECT
