"""How long kernels wait for devices and hold them, and how long devices are idle although kernels wait."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from evaluators.build.builder import Build
from evaluators.records.evaluation import Evaluation, Stage, Status
from evaluators.records.problem import Problem
from evaluators.records.time_spent import DeviceLease
from evaluators.scheduler import job
from evaluators.scheduler.device_queue import DeviceQueue
from evaluators.scheduler.device_use import Demand, LeaseClock
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import (
    CORRECT,
    ON_CPU,
    ON_GPU,
    FakeHost,
    break_down,
    evaluated,
    kernel,
)


class Now:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def after(self, seconds: float) -> Evaluation:
        """A verdict that takes this long."""
        self.now += seconds
        return CORRECT


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> Now:
    """The clock of all jobs."""
    found = Now()
    monkeypatch.setattr(job, "LeaseClock", partial(LeaseClock, found))
    return found


def test_demand_counts_the_time_with_any_kernel_on_its_way() -> None:
    now = Now()
    demand = Demand(now)
    now.now = 10.0
    with demand.counting(1):
        now.now = 11.0
        with demand.counting(1):
            now.now = 13.0
            with demand.counting(-1), demand.counting(-1):  # both have a device
                now.now = 20.0
            now.now = 21.0
    now.now = 30.0
    assert demand.seconds() == 4.0


def test_a_clock_adds_up_waiting_building_and_leases() -> None:
    now = Now()
    clock = LeaseClock(now)
    with clock.waiting():
        now.now = 2.0
    with clock.holding(3, idle_s=0.5):  # a try that failed
        now.now = 5.0
    now.now = 100.0
    with clock.holding(1, idle_s=0.25):
        with clock.building():
            now.now = 101.0
        with clock.holding(1):
            now.now = 104.0
        now.now = 200.0
        assert clock.lease() == DeviceLease(device="1", waited_s=2.0, held_s=7.0, building_s=1.0, idle_s=0.75)


def test_a_device_is_idle_in_vain_only_while_kernels_are_on_their_way() -> None:
    now = Now()
    queue = DeviceQueue(2)
    queue.demand = Demand(now)

    async def leases() -> None:
        async with queue.lease("a"), queue.lease("a"):
            now.now = 1.0
        now.now = 5.0
        with queue.demand.counting(1):
            now.now = 8.0
            async with queue.lease("a") as device:
                assert queue.idle_s[device] == 3.0

    asyncio.run(leases())


@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_a_verdict_says_where_and_how_long_it_was_measured(problem: Problem, now: Now) -> None:
    host = FakeHost()

    def build() -> Build:
        now.now += 3.0
        return Build(seconds=3.0, archive=b"")

    host.building, host.measuring = [build], [lambda: now.after(2.0)]
    lease = evaluated(host, problem).lease
    assert lease is not None
    assert lease.device == "0"
    on_cpu = problem is ON_CPU
    assert (lease.held_s, lease.building_s) == ((5.0, 3.0) if on_cpu else (2.0, 0.0))


def test_what_no_stage_explains_is_other() -> None:
    found = Evaluation(status=Status.CRASHED, device_s=2.0, stages_s={Stage.TIMING: 1.5, Stage.OTHER: 0.5})
    held = found.held(DeviceLease(device="0", held_s=4.0, building_s=1.0))
    assert held.stages_s == {Stage.TIMING: 1.5, Stage.OTHER: 1.5}
    assert held.device_s == 3.0 == sum(held.stages_s.values())


def test_a_try_that_failed_counts_as_held(now: Now) -> None:
    host = FakeHost()

    def fail() -> Any:
        now.now += 4.0
        return break_down()

    host.measuring = [fail, lambda: now.after(2.0)]
    found = evaluated(host)
    assert found.lease is not None and found.lease.held_s == 6.0
    assert found.device_s == 6.0
    assert found.stages_s == {Stage.OTHER: 6.0 - CORRECT.device_s}


def test_kernels_that_share_a_session_share_its_time() -> None:
    host = FakeHost()

    async def compared() -> list[Evaluation]:
        return await Pool(host).compare(ON_GPU, [kernel(1), kernel(2)])

    one, two = asyncio.run(compared())
    assert one.lease == two.lease is not None
