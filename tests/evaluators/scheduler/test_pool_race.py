"""A race in a pool: the quick stage, the threshold, and the full stage on its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from evaluators.build.builder import Build
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Case, Kernel, Problem
from evaluators.records.race import Threshold
from evaluators.records.timing import Effort
from evaluators.scheduler.host import OnStage
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import CORRECT, ON_GPU, FakeHost, kernel

CONFIGURED = Kernel(source='CONFIGS = {"BLOCK": [64, 128]}\nBLOCK = 64\n', language="cuda")
assert CORRECT.timing is not None
SAMPLED = replace(CORRECT.timing, kernel_samples_ms=(1.0,) * 6, eager_samples_ms=(2.0,) * 6)


class EffortHost(FakeHost):
    """Records the effort of each measurement; `fails` says in which one the kernel is wrong."""

    def __init__(self, *, fails: Effort | None = None) -> None:
        super().__init__()
        self.efforts: list[Effort] = []
        self.cases: list[Any] = []
        self._fails = fails

    async def measure(
        self,
        device: int,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        effort: Effort,
        more: bool,
        on_stage: OnStage,
    ) -> Evaluation:
        found = await super().measure(device, problem, kernel, archive, effort, more, on_stage)
        self.efforts.append(effort)
        self.cases.append(problem.overrides.get("n"))
        if effort is self._fails:
            return Evaluation(status=Status.INCORRECT, log="wrong", device_s=0.5)
        return replace(found, timing=SAMPLED)

    async def compare(self, *arguments: Any) -> list[Evaluation]:
        return [replace(each, timing=SAMPLED) for each in await super().compare(*arguments)]


def raced(
    host: FakeHost, threshold: Threshold, problem: Problem = ON_GPU, what: Kernel | None = None
) -> Evaluation:
    return asyncio.run(Pool(host).race(problem, what or kernel(), threshold=threshold))


@pytest.mark.parametrize(
    ("threshold", "efforts", "status"),
    [
        (None, [Effort.QUICK], Status.OUTPACED),
        (2.2, [Effort.QUICK], Status.OUTPACED),  # the interval ends at 2.1
        (2.05, [Effort.QUICK, Effort.FULL], Status.CORRECT),
        (0.0, [Effort.FULL], Status.CORRECT),
    ],
)
def test_the_threshold_decides_on_the_full_stage(
    threshold: Threshold, efforts: list[Effort], status: Status
) -> None:
    host = EffortHost()
    found = raced(host, threshold)
    assert host.efforts == efforts
    assert found.status is status
    assert found.device_s == pytest.approx(0.5 * len(efforts))
    assert (found.quick is None) == (status is Status.CORRECT)
    if found.quick is not None:
        assert found.quick.threshold == threshold
        assert found.timing is None


def test_a_kernel_that_is_only_right_in_the_quick_stage_is_wrong() -> None:
    host = EffortHost(fails=Effort.FULL)
    assert raced(host, 1.0).status is Status.INCORRECT
    assert host.efforts == [Effort.QUICK, Effort.FULL]


def test_a_kernel_that_fails_in_the_quick_stage_is_not_judged_again() -> None:
    host = EffortHost(fails=Effort.QUICK)
    assert raced(host, 1.0).status is Status.INCORRECT
    assert host.efforts == [Effort.QUICK]
    host.building.append(lambda: Build(status=Status.COMPILE_ERROR, log="no", seconds=0.1))
    assert raced(host, None).status is Status.COMPILE_ERROR


def test_the_quick_stage_measures_the_timed_cases_only() -> None:
    weights = ((16, 1.0), (100, 3.0), (33, 0.0))
    cases = tuple(Case(sizes={"n": n}, weight=weight) for n, weight in weights)
    host = EffortHost()
    found = raced(host, None, replace(ON_GPU, cases=cases))
    assert found.status is Status.OUTPACED
    assert host.cases == [16, 100]
    assert not found.cases  # they would be called correct
    host = EffortHost()
    assert raced(host, 0.0, replace(ON_GPU, cases=cases)).status is Status.CORRECT
    assert set(host.cases) >= {16, 100, 33}


def test_what_a_quick_stage_would_not_save_is_judged_in_full_at_once() -> None:
    untimed, host = replace(ON_GPU, timed=False), EffortHost()
    assert raced(host, None, untimed).status is Status.CORRECT
    assert host.efforts == [Effort.FULL]
    host = EffortHost()
    found = raced(host, None, what=CONFIGURED)
    assert found.status is Status.CORRECT
    assert set(host.efforts) == {Effort.FULL}
    assert host.compared  # its configurations raced


def test_nothing_else_is_ever_outpaced() -> None:
    pool = Pool(FakeHost())

    async def found() -> list[Evaluation]:
        both = await pool.compare(ON_GPU, [kernel("a"), kernel("b")])
        return [
            *both,
            await pool.evaluate(ON_GPU, kernel("c")),
            await pool.evaluate(ON_GPU, kernel("d"), thorough=True),
        ]

    assert {each.status for each in asyncio.run(found())} == {CORRECT.status}
