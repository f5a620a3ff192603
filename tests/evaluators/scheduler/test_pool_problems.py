"""Problems that cannot be opened, or whose reference cannot judge a kernel."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Problem
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import (
    CORRECT,
    ON_CPU,
    ON_GPU,
    OTHER,
    FakeHost,
    evaluated,
    find_unfit,
    judged,
    kernel,
    run_many,
)


def test_a_problem_that_cannot_be_run_is_no_kernels_fault() -> None:
    host = FakeHost()
    host.sick, host.work_s = {0}, 0.01

    async def several() -> list[Evaluation]:
        pool = Pool(host)
        return list(await asyncio.gather(*(pool.evaluate(ON_GPU, kernel(n)) for n in range(2))))

    found = asyncio.run(several())
    assert {(each.status, each.log) for each in found} == {
        (Status.INFRASTRUCTURE_ERROR, "the device is lost")
    }
    assert not host.measured


def test_a_problem_that_cannot_be_run_is_reported_before_any_kernel() -> None:
    host = FakeHost()

    async def broken(device: int, problem: Problem) -> dict[str, str]:
        raise WorkerBroken("the reference cannot be run: seven")

    host.facts = broken  # type: ignore[method-assign]
    pool = Pool(host)
    with pytest.raises(WorkerBroken, match="seven"):
        asyncio.run(pool.describe(ON_GPU))
    assert pool.devices_set_aside == {}
    found = evaluated(host)
    assert (found.status, found.log) == (Status.INFRASTRUCTURE_ERROR, "the reference cannot be run: seven")
    assert not host.measured


@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_an_unfit_reference_is_found_once(problem: Problem, caplog: pytest.LogCaptureFixture) -> None:
    host = FakeHost(devices=2)

    async def unfit(device: int, problem: Problem) -> dict[str, str]:
        host.opened.append(problem.name)
        return find_unfit()

    host.facts = unfit  # type: ignore[method-assign]
    pool = Pool(host)

    async def several() -> list[Evaluation]:
        with pytest.raises(UnfitProblem, match="zeros would pass"):
            await pool.describe(problem)
        return [await pool.evaluate(problem, kernel(n)) for n in range(3)]

    for found in asyncio.run(several()):
        assert found.status is Status.UNFIT_REFERENCE
        assert found.cause == "the reference cannot judge a kernel: zeros would pass"
    assert host.opened == [problem.name]
    assert not host.built
    assert not host.measured
    assert not caplog.records


def test_an_unfit_reference_is_found_while_another_problem_is_open() -> None:
    host = FakeHost()
    host.measuring = [find_unfit]
    pool = Pool(host)

    async def several() -> list[Evaluation]:
        await pool.describe(ON_GPU)
        return list(await asyncio.gather(*(pool.evaluate(OTHER, kernel(n)) for n in range(4))))

    found = asyncio.run(several())
    assert {(each.status, each.cause) for each in found} == {
        (Status.UNFIT_REFERENCE, "the reference cannot judge a kernel: zeros would pass")
    }
    assert sum(host.measured.values()) == 1
    assert pool.devices_set_aside == {}


def test_waiting_kernels_are_not_built_for_an_unfit_problem() -> None:
    host = FakeHost()
    host.measuring = [find_unfit]
    other = replace(OTHER, device="cpu")
    pool = Pool(host)

    async def several() -> list[Evaluation]:
        await pool.describe(ON_CPU)
        return list(await asyncio.gather(*(pool.evaluate(other, kernel(n)) for n in range(4))))

    assert {each.status for each in asyncio.run(several())} == {Status.UNFIT_REFERENCE}
    assert sum(host.built.values()) == 1, "a build takes the device's time on a CPU"


def test_a_reference_that_was_fit_fails_by_its_device() -> None:
    host = FakeHost(devices=2)
    host.measuring = [lambda: CORRECT, find_unfit]
    assert asyncio.run(judged(Pool(host), count=3)) == [Status.CORRECT] * 3


@pytest.mark.parametrize("why", ["", "no namespaces: unshare: Operation not permitted"])
def test_how_kernels_are_confined_is_one_line_at_the_start(
    why: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Confining(FakeHost):
        async def facts(self, device: int, problem: Problem) -> dict[str, str]:
            missing = {"isolation_missing": why} if why else {}
            return {**await super().facts(device, problem), "isolation": "limits+seccomp", **missing}

    caplog.set_level("INFO", logger="evaluators.isolation")
    run_many(Confining(devices=2), ON_GPU, 4)
    (line,) = [each for each in caplog.records if each.name == "evaluators.isolation"]
    assert line.message == "kernels are confined by limits+seccomp" + f"; {why}" * bool(why)
    assert line.levelname == ("WARNING" if why else "INFO")
