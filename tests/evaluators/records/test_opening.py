"""Where the time of opening goes: the clock of its steps, the record, the table."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from evaluators.audit import __main__ as audit
from evaluators.device.child_processes import UnfitProblem
from evaluators.records import opening
from evaluators.records.opening import Opening, OpeningStep, Steps, joined, table
from evaluators.scheduler.lanes import CannotOpen
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import ON_CPU, ON_GPU, FakeHost


class Clock:
    """Each look at it takes a second."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 1.0
        return self.now


def test_a_nested_step_pauses_the_outer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "time", Clock())
    waited: list[int] = []
    steps = Steps(lambda: waited.append(1))
    with steps.step(OpeningStep.DISTRIBUTIONS):
        for _ in range(2):
            with steps.step(OpeningStep.SHIFTS):
                pass
    with pytest.raises(ValueError), steps.step(OpeningStep.PEAKS):
        raise ValueError
    found = steps.seconds()
    assert found == {
        OpeningStep.REST: 3.0,
        OpeningStep.DISTRIBUTIONS: 3.0,
        OpeningStep.SHIFTS: 2.0,
        OpeningStep.PEAKS: 1.0,
    }
    assert len(waited) == 9, "for the device, at each end"


def test_the_workers_waiting_time_is_the_judge_processs() -> None:
    worker = {OpeningStep.FORKING.value: 0.5, OpeningStep.REST.value: 4.0}
    judge = {OpeningStep.SHIFTS.value: 3.0, OpeningStep.REST.value: 0.25}
    found = joined(worker, judge)
    assert found == {"forking the baseline": 0.5, "shifts by a rounding": 3.0, "the rest": 1.0}
    assert Opening(problem="x", seconds=found).total_s == 4.5


def test_the_table_has_each_steps_median_worst_and_share() -> None:
    found = [
        Opening(problem="one", seconds={"shifts by a rounding": 1.0, "calibration": 1.0}),
        Opening(problem="two", seconds={"shifts by a rounding": 5.0, "calibration": 1.0}),
        Opening(problem="three", seconds={"shifts by a rounding": 2.0}),
    ]
    assert [Opening.from_json(json.loads(json.dumps(each.to_json()))) for each in found] == found
    lines = [line.split() for line in table(found)]
    assert lines[1] == ["shifts", "by", "a", "rounding", "2.000", "5.000", "80%"]
    assert lines[2] == ["calibration", "1.000", "1.000", "20%"]
    assert lines[3] == ["all", "2.000", "6.000", "100%"]
    assert " ".join(lines[4]) == "3 problems; the slowest is two"
    assert table([]) == ["no problem was opened"]


def test_a_pool_opens_on_the_next_device_and_does_not_try_the_unfit_again() -> None:
    host = FakeHost(devices=2)
    host.sick = {0}
    pool = Pool(host)
    assert asyncio.run(pool.opening(ON_GPU)).total_s == 1.0
    assert len(host.opened) == 2
    host.sick = {0, 1}
    with pytest.raises(CannotOpen, match="the device is lost"):
        asyncio.run(pool.opening(ON_GPU))
    host.sick, host.unfit = set(), [ON_CPU]
    tried = len(host.opened)
    with pytest.raises(UnfitProblem, match="it keeps state"):
        asyncio.run(pool.opening(ON_CPU))
    assert len(host.opened) == tried + 1


@pytest.mark.slow
def test_the_openings_of_a_suite_are_printed_and_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    call = [
        *("suite=shipped", "opening=true", "device=cpu", f"out={tmp_path}", "only=[softmax,matmul]"),
        *("problem.sizes.batch=4", "problem.sizes.size=64", "pool=local"),
    ]
    assert audit.main(call) == 0
    said = capsys.readouterr().out
    told = {step.value for step in OpeningStep if f"\n{step.value}  " in said}
    gpu_only = {OpeningStep.ATTRIBUTION, OpeningStep.CLOSING, OpeningStep.PEAKS}
    assert told >= {step.value for step in OpeningStep if step not in gpu_only}
    assert "\nall  " in said and "2 problems; the slowest is level1/" in said
    kept = (tmp_path / "shipped_opening.jsonl").read_text().splitlines()
    found = [Opening.from_json(json.loads(line)["value"]) for line in kept]
    assert {each.problem for each in found} == {"level1/softmax", "level1/matmul"}
    assert all(each.seconds["calibration"] > 0.01 and each.total_s < 120 for each in found)
    monkeypatch.setattr("evaluators.scheduler.pool.Pool.opening", None)  # nothing is opened again
    assert audit.main(call) == 0
    assert capsys.readouterr().out == said
