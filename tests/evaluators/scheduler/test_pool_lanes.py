"""The two lanes: how many builds and measurements run concurrently, and what does not disturb what."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from evaluators.build.builder import Build
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel, Problem
from evaluators.scheduler.lanes import IN_FRONT
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import ON_CPU, ON_GPU, FakeHost, break_down, die, kernel, run_many


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "cores"), [(1, 1), (1, 4), (2, 3), (4, 1)])
def test_lanes_are_as_wide_as_the_host_says(devices: int, cores: int) -> None:
    host = FakeHost(devices=devices, cores=cores, work_s=0.01)
    found = run_many(host, ON_GPU, 12)
    assert [each.log for each in found] == [f"{kernel(n).id} usual" for n in range(12)], "to each its own"
    assert host.most["build"] == min(cores, 12)
    assert host.most["measure"] <= devices
    assert all(host.most[f"device {n}"] == 1 for n in range(devices) if host.used[n])
    assert set(host.measured.values()) == set(host.built.values()) == {1}
    assert len(host.opened) == 1


def test_all_devices_work() -> None:
    host = FakeHost(devices=3, cores=8, work_s=0.01)
    run_many(host, ON_GPU, 12)
    assert host.most["measure"] == 3
    assert set(host.used) == {0, 1, 2}


def test_on_a_gpu_builds_run_during_a_measurement() -> None:
    host = FakeHost(devices=1, cores=1, work_s=0.01)
    run_many(host, ON_GPU, 6)
    assert ("build", "measure") in host.overlaps


@pytest.mark.slow
def test_a_kernel_is_processed_once_at_a_time() -> None:
    """Its scratch folder has one name per problem: equal kernels would remove each other's."""

    async def run(pool: Pool) -> None:
        same = [pool.evaluate(ON_GPU, kernel()) for _ in range(4)]
        await asyncio.gather(*same, pool.compare(ON_GPU, [kernel(), kernel("other")]))

    host = FakeHost(devices=4, cores=8, work_s=0.01)
    asyncio.run(run(Pool(host)))
    assert host.most["measure"] == 1
    assert host.measured[kernel().id] == 4


@pytest.mark.slow
def test_builds_ahead_of_the_devices_are_limited() -> None:
    class Counting(FakeHost):
        ahead = 0

        async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
            self.ahead = max(self.ahead, len(self.built) + 1 - len(self.measured))
            return await super().build(problem, kernel, architecture)

    host = Counting(devices=1, cores=3, work_s=0.005)
    run_many(host, ON_GPU, 20)
    assert host.ahead == IN_FRONT * 3
    assert host.most["build"] == 3


@pytest.mark.slow
def test_on_a_cpu_nothing_disturbs_a_measurement() -> None:
    host = FakeHost(devices=1, cores=8, work_s=0.01)
    run_many(host, ON_CPU, 6)
    assert host.overlaps == {("build",), ("measure",)}
    assert host.most["build"] == host.most["measure"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_failures_and_cancellation_give_their_lanes_back(problem: Problem) -> None:
    host = FakeHost(work_s=0.01)
    host.building = [lambda: Build(seconds=1.0, status=Status.COMPILE_ERROR), die]
    host.measuring = [die, break_down]

    async def several() -> Status:
        pool = Pool(host)
        await asyncio.gather(*(pool.evaluate(problem, kernel(n)) for n in range(4)))
        for after_s in (0.0, 0.005, 0.015):
            running = asyncio.ensure_future(pool.evaluate(problem, kernel("cancelled")))
            await asyncio.sleep(after_s)
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
        return (await asyncio.wait_for(pool.evaluate(problem, kernel("last")), 5)).status

    assert asyncio.run(several()) is Status.CORRECT
    assert host.most["device 0"] == 1
