"""The pool: nothing is lost or judged twice, and failed work is tried again."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from evaluators.build.builder import Build
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Problem
from evaluators.scheduler.lanes import TRIES
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import (
    CORRECT,
    ON_CPU,
    ON_GPU,
    RESOURCES,
    Act,
    FakeHost,
    break_down,
    die,
    evaluated,
    kernel,
)


def test_a_verdict_includes_the_time_and_the_resources_of_the_build() -> None:
    host = FakeHost()
    found = evaluated(host)
    told = {"device": "fake"}
    expected = replace(CORRECT, log=f"{kernel().id} usual", environment=told, build_s=0.25)
    assert found == replace(expected, lease=found.lease, resources=RESOURCES)
    assert host.archives == {kernel().id.encode()}
    assert host.architectures == {"9.0"}


def test_a_thorough_measurement_is_requested() -> None:
    assert evaluated(FakeHost(), thorough=True).log.endswith("thorough")


@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_stages_are_reported_in_order(problem: Problem) -> None:
    stages: list[str] = []
    evaluated(FakeHost(), problem, on_stage=stages.append)
    assert stages == ["building", "measuring", "checking"]


def test_a_build_does_not_wait_for_the_problem_to_open() -> None:
    host = FakeHost()
    host.facts_s = 0.05
    stages: list[str] = []

    def note(stage: str) -> None:
        stages.append(f"{stage}, {len(host.known)} open")

    evaluated(host, on_stage=note)
    assert stages == ["building, 0 open", "measuring, 1 open", "checking, 1 open"]
    assert host.opened == [ON_GPU.name]


def test_lost_work_goes_to_another_worker() -> None:
    host = FakeHost()
    host.measuring = [die]
    found = evaluated(host)
    assert found.status is Status.CORRECT
    assert host.measured[kernel().id] == 2


@pytest.mark.parametrize(
    ("building", "measuring"),
    [([], [die, die]), ([die, die], []), ([die], [die])],
    ids=["measured twice", "built twice", "built and measured"],
)
@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_workers_that_die_are_not_blamed_on_the_kernel(
    problem: Problem, building: list[Act], measuring: list[Act]
) -> None:
    host = FakeHost()
    host.building, host.measuring = list(building), list(measuring)
    assert evaluated(host, problem).status is Status.CORRECT
    host.building, host.measuring = [*building, die], [*measuring, die]
    found = asyncio.run(Pool(host).evaluate(problem, kernel("b")))
    assert found.status is Status.INFRASTRUCTURE_ERROR
    assert found.log == "the node is gone"


def test_our_failures_are_not_blamed_on_the_kernel() -> None:
    host = FakeHost()
    host.measuring = [break_down] * TRIES
    found = evaluated(host)
    assert found.status is Status.INFRASTRUCTURE_ERROR
    assert found.log == "the judge process died"
    assert host.measured[kernel().id] == TRIES


@pytest.mark.parametrize("acts", [[break_down], [break_down] * 2, [die, break_down], [break_down, die]])
def test_one_good_try_is_enough(acts: list[Act]) -> None:
    host = FakeHost()
    host.measuring = list(acts)
    assert evaluated(host).status is Status.CORRECT
    assert host.measured[kernel().id] == len(acts) + 1


def test_deaths_are_counted_for_each_kernel_by_itself() -> None:
    host = FakeHost()

    async def both() -> list[Evaluation]:
        pool = Pool(host)
        host.measuring = [die]
        first = await pool.evaluate(ON_GPU, kernel(1))
        host.measuring = [die]
        return [first, await pool.evaluate(ON_GPU, kernel(2))]

    assert [found.status for found in asyncio.run(both())] == [Status.CORRECT] * 2


@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
@pytest.mark.parametrize("status", [Status.COMPILE_ERROR, Status.TIMEOUT, Status.CRASHED])
def test_a_failed_build_is_the_verdict_and_uses_no_device(problem: Problem, status: Status) -> None:
    host = FakeHost()
    host.building = [lambda: Build(seconds=3.0, status=status, log="error: no")]
    found = evaluated(host, problem)
    assert (found.status, found.log, found.build_s) == (status, "error: no", 3.0)
    assert found.environment["device"] == "fake"
    assert not host.measured


def test_closing_closes_the_host() -> None:
    host = FakeHost()
    Pool(host).close()
    assert host.closed == 1


def test_retries_are_logged_in_one_line_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Any:
        raise ValueError("seven")

    host = FakeHost()
    pool = Pool(host)

    async def several() -> list[Evaluation]:
        found = []
        for n in range(12):
            host.measuring = [fail]
            found.append(await pool.evaluate(ON_CPU, kernel(n)))
        host.measuring = [fail] * TRIES
        return [*found, await pool.evaluate(ON_CPU, kernel("hopeless"))]

    *good, bad = asyncio.run(several())
    assert {each.status for each in good} == {Status.CORRECT}
    assert (bad.status, bad.cause) == (Status.INFRASTRUCTURE_ERROR, "ValueError: seven")
    assert "test_pool.py" in bad.log, "with the traceback"
    pool.close()
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        f"kernel {kernel(0).id} is tried again: ValueError: seven",
        f"kernel {kernel(9).id} is tried again: ValueError: seven (10 times so far)",
        f"a kernel was tried again {12 + TRIES - 1} times in total: ValueError: seven",
    ]
