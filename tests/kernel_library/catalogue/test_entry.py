"""The records: what they refuse, where a kernel is right, what a later check says of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.race import after_quick_stage
from kernel_library.catalogue.entry import Measurement, RepeatedMeasurement
from tests.kernel_library.entries import CPU, GPU, entry, evaluation, shipped

SOFTMAX = shipped("level1/softmax")


@pytest.mark.parametrize("pattern", ["4096×65536", "8..4x", "a-x8", "8%0", "1...2", "8x...", "-1"])
def test_an_invalid_shape_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="shape pattern"):
        entry(SOFTMAX, shapes=(pattern,))


def test_an_entry_has_been_right_and_measured() -> None:
    with pytest.raises(ValueError, match="incorrect"):
        Measurement(problem=SOFTMAX, evaluation=Evaluation(status=Status.INCORRECT))
    outpaced = after_quick_stage(entry(SOFTMAX).measurements[0].evaluation, None)
    with pytest.raises(ValueError, match="outpaced"):
        Measurement(problem=SOFTMAX, evaluation=outpaced)
    with pytest.raises(ValueError, match="measurement"):
        replace(entry(SOFTMAX), measurements=())
    with pytest.raises(ValueError, match="fp16"):
        entry(SOFTMAX, dtypes=("fp16",))


def test_the_id_is_that_of_kernel_problem_and_architecture() -> None:
    one = entry(SOFTMAX)
    assert one.id == entry(SOFTMAX, speedup=3.0).id
    others = [
        entry(SOFTMAX, source="another"),
        entry(shipped("level1/matmul")),
        entry(SOFTMAX, environment={**GPU, "architecture": "8.9"}),
    ]
    assert len({one.id, *(each.id for each in others)}) == 4
    assert replace(one, name="softmax/online").id == "softmax/online"


def test_a_check_confirms_the_card_or_says_why_not() -> None:
    known = entry(SOFTMAX, speedup=2.0, architectures=("9.0", "8.9"))

    def outcome(found: Evaluation) -> str:
        return known.failure(RepeatedMeasurement(problem_id=SOFTMAX.id, evaluation=found))

    assert outcome(evaluation(1.9)) == ""
    assert outcome(evaluation(1.5)) == "slower: 1.50x, 2.00x in the card"
    assert outcome(evaluation(1.5, {**GPU, "device": "NVIDIA L40S"})) == ""
    wrong = Evaluation(status=Status.INCORRECT, environment=GPU)
    assert outcome(wrong) == "incorrect"
    cheat = Evaluation(status=Status.REJECTED, rule="library", environment=GPU)
    assert outcome(cheat) == "rejected (library)"
    checked = replace(known, checks=(RepeatedMeasurement(problem_id=SOFTMAX.id, evaluation=wrong),))
    assert [known.runs_on(each) for each in ("9.0", "8.9", "8.0", "")] == [True, True, False, True]
    assert [checked.runs_on(each) for each in ("9.0", "8.9", "8.0", "")] == [False, True, False, True]


def test_the_last_finding_on_a_device_counts() -> None:
    known = entry(SOFTMAX, speedup=2.0)
    assert known.measured(SOFTMAX.id, "NVIDIA H200") == known.measurements[0].evaluation
    assert known.measured(SOFTMAX.id, "EPYC") is None
    assert known.measured(SOFTMAX.id, "") is None
    later = evaluation(1.7)
    here = RepeatedMeasurement(problem_id=SOFTMAX.id, evaluation=later)
    there = RepeatedMeasurement(problem_id=SOFTMAX.id, evaluation=evaluation(9.0, CPU))
    assert replace(known, checks=(here, there)).measured(SOFTMAX.id, "NVIDIA H200") == later
    broken = RepeatedMeasurement(
        problem_id=SOFTMAX.id, evaluation=Evaluation(status=Status.CRASHED, environment=GPU)
    )
    assert replace(known, checks=(broken,)).measured(SOFTMAX.id, "NVIDIA H200") is None
