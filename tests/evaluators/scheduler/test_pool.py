"""The pool: nothing is lost or judged twice, each lane has its width, and hosts that do real work."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.build.builder import Build
from evaluators.device.child_processes import UnfitProblem, WorkerBroken
from evaluators.evaluation import Evaluation, Status, Timing
from evaluators.isolation.scratch import scratch_root
from evaluators.problem import Kernel, Problem
from evaluators.scheduler.local_host import LocalHost
from evaluators.scheduler.pool import IN_FRONT, TRIES, OnStage, Pool, WorkerDied
from evaluators.scheduler.ray_host import RayHost
from evaluators.system import process_tree
from tests.evaluators.conftest import Marked, gone
from tests.evaluators.device.test_worker import HONEST, PROBLEM, REFERENCE, SETTINGS, forward

ON_GPU = Problem(name="level1/fake", source="class Model: ...", device="cuda")
ON_CPU = replace(ON_GPU, device="cpu")
CORRECT = Evaluation(
    status=Status.CORRECT,
    timing=Timing(kernel_ms=1.0, eager_ms=2.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1),
    device_s=0.5,
)
Act = Callable[[], Any]


def kernel(name: object = "a") -> Kernel:
    return Kernel(source=f"# {name}", language="cuda")


def die() -> Any:
    raise WorkerDied("the node is gone")


def break_down() -> Any:
    raise WorkerBroken("the judge process died")


class FakeHost:
    """Does what it is told at each measurement and build, and keeps book of what ran at the same time."""

    def __init__(self, *, devices: int = 1, cores: int = 1, work_s: float = 0.0) -> None:
        self.devices, self.cores = devices, cores
        self.work_s = work_s
        self.measuring: list[Act] = []
        self.building: list[Act] = []
        self.used: Counter[int] = Counter()
        self.measured: Counter[str] = Counter()
        self.built: Counter[str] = Counter()
        self.architectures: set[str] = set()
        self.archives: set[bytes] = set()
        self.compared: list[tuple[str, ...]] = []
        self.opened: list[str] = []
        self.known: list[str] = []
        self.facts_s = 0.0
        self.sick: set[int] = set()
        self.canaries_ms: dict[int, float] = {}
        self.order: list[tuple[int, str]] = []
        self.closed = 0
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.overlaps: set[tuple[str, ...]] = set()

    async def facts(self, device: int, problem: Problem) -> dict[str, str]:
        self.opened.append(problem.name)
        await asyncio.sleep(self.facts_s)
        self.known.append(problem.name)
        if device in self.sick:
            raise WorkerBroken("the device is lost")
        return {"device": "fake", "architecture": "9.0"}

    async def architecture(self) -> str:
        return "9.0"

    async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
        self.built[kernel.id] += 1
        self.architectures.add(architecture)
        async with self._at("build"):
            act = self.building.pop(0) if self.building else None
            return act() if act else Build(seconds=0.25, archive=kernel.id.encode())

    async def measure(
        self,
        device: int,
        problem: Problem,
        kernel: Kernel,
        archive: bytes,
        thorough: bool,
        on_stage: OnStage,
    ) -> Evaluation:
        self.measured[kernel.id] += 1
        self.used[device] += 1
        self.archives.add(archive)
        self.order.append((device, problem.name))
        async with self._at("measure"), self._at(f"device {device}"):
            on_stage("checking")
            if device in self.sick:
                raise WorkerBroken("the device is lost")
            act = self.measuring.pop(0) if self.measuring else None
            canary = {"canary_ms": str(self.canaries_ms[device])} if device in self.canaries_ms else {}
            told = replace(CORRECT, log=f"{kernel.id} {thorough}", environment={"device": "fake"} | canary)
            return act() if act else told

    async def compare(
        self,
        device: int,
        problem: Problem,
        kernels: Sequence[Kernel],
        archives: Sequence[bytes],
        thorough: bool,
    ) -> list[Evaluation]:
        self.compared.append(tuple(each.id for each in kernels))
        self.archives.update(archives)
        async with self._at("measure"), self._at(f"device {device}"):
            if device in self.sick:
                raise WorkerBroken("the device is lost")
            act = self.measuring.pop(0) if self.measuring else None
            if act:
                act()
            return [replace(CORRECT, log=f"{each.id} {thorough}") for each in kernels]

    def close(self) -> None:
        self.closed += 1

    @contextlib.asynccontextmanager
    async def _at(self, lane: str) -> Any:
        self.now[lane] += 1
        self.most[lane] = max(self.most[lane], self.now[lane])
        self.overlaps.add(tuple(sorted(name for name, n in self.now.items() if n and "device" not in name)))
        try:
            await asyncio.sleep(self.work_s)
            yield
        finally:
            self.now[lane] -= 1


def evaluated(host: FakeHost, problem: Problem = ON_GPU, **options: Any) -> Evaluation:
    return asyncio.run(Pool(host).evaluate(problem, kernel(), **options))


def test_a_verdict_comes_with_what_the_build_took() -> None:
    host = FakeHost()
    found = evaluated(host)
    told = {"device": "fake"}
    assert found == replace(CORRECT, log=f"{kernel().id} False", build_s=0.25, environment=told)
    assert host.archives == {kernel().id.encode()}
    assert host.architectures == {"9.0"}


def test_a_thorough_measurement_is_asked_for_as_such() -> None:
    assert evaluated(FakeHost(), thorough=True).log.endswith("True")


@pytest.mark.parametrize("problem", [ON_GPU, ON_CPU])
def test_stages_are_told_in_order(problem: Problem) -> None:
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
def test_a_kernel_that_kills_two_workers_is_at_fault(
    problem: Problem, building: list[Act], measuring: list[Act]
) -> None:
    host = FakeHost()
    host.building, host.measuring = list(building), list(measuring)
    found = evaluated(host, problem)
    assert found.status is Status.CRASHED
    assert "two workers" in found.log
    assert "the node is gone" in found.log


def test_what_is_ours_to_blame_is_not_the_kernels() -> None:
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
def test_a_failed_build_is_the_verdict_and_holds_no_device(problem: Problem, status: Status) -> None:
    host = FakeHost()
    host.building = [lambda: Build(seconds=3.0, status=status, log="error: no")]
    found = evaluated(host, problem)
    assert (found.status, found.log, found.build_s) == (status, "error: no", 3.0)
    assert found.environment["device"] == "fake"
    assert not host.measured


def run_many(host: FakeHost, problem: Problem, count: int) -> list[Evaluation]:
    async def all_of_them() -> list[Evaluation]:
        pool = Pool(host)
        await pool.describe(problem)
        return list(await asyncio.gather(*(pool.evaluate(problem, kernel(n)) for n in range(count))))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize(("devices", "cores"), [(1, 1), (1, 4), (2, 3), (4, 1)])
def test_lanes_are_as_wide_as_the_host_says(devices: int, cores: int) -> None:
    host = FakeHost(devices=devices, cores=cores, work_s=0.01)
    found = run_many(host, ON_GPU, 12)
    assert [each.log for each in found] == [f"{kernel(n).id} False" for n in range(12)], "to each its own"
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


def test_on_a_gpu_builds_go_on_during_a_measurement() -> None:
    host = FakeHost(devices=1, cores=1, work_s=0.01)
    run_many(host, ON_GPU, 6)
    assert ("build", "measure") in host.overlaps


def test_a_kernel_is_at_work_once_at_a_time() -> None:
    """Its scratch folder has one name for one problem: equal kernels would remove each other's."""

    async def run(pool: Pool) -> None:
        same = [pool.evaluate(ON_GPU, kernel()) for _ in range(4)]
        await asyncio.gather(*same, pool.compare(ON_GPU, [kernel(), kernel("other")]))

    host = FakeHost(devices=4, cores=8, work_s=0.01)
    asyncio.run(run(Pool(host)))
    assert host.most["measure"] == 1
    assert host.measured[kernel().id] == 4


def test_what_is_built_ahead_of_the_devices_has_a_bound() -> None:
    class Counting(FakeHost):
        ahead = 0

        async def build(self, problem: Problem, kernel: Kernel, architecture: str) -> Build:
            self.ahead = max(self.ahead, len(self.built) + 1 - len(self.measured))
            return await super().build(problem, kernel, architecture)

    host = Counting(devices=1, cores=3, work_s=0.005)
    run_many(host, ON_GPU, 20)
    assert host.ahead == IN_FRONT * 3
    assert host.most["build"] == 3


def test_on_a_cpu_nothing_disturbs_a_measurement() -> None:
    host = FakeHost(devices=1, cores=8, work_s=0.01)
    run_many(host, ON_CPU, 6)
    assert host.overlaps == {("build",), ("measure",)}
    assert host.most["build"] == host.most["measure"] == 1


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


def test_closing_closes_the_host() -> None:
    host = FakeHost()
    Pool(host).close()
    assert host.closed == 1


def test_a_problem_that_cannot_be_run_is_told_before_any_kernel() -> None:
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


def find_unfit() -> Any:
    raise UnfitProblem("the reference cannot judge a kernel: zeros would pass")


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
        assert found.status is Status.INFRASTRUCTURE_ERROR
        assert found.cause == "the reference cannot judge a kernel: zeros would pass"
    assert host.opened == [problem.name]
    assert not host.built
    assert not host.measured
    assert not caplog.records


def test_so_it_is_where_another_problem_is_open_already() -> None:
    host = FakeHost()
    host.measuring = [find_unfit]
    pool = Pool(host)

    async def several() -> list[Evaluation]:
        await pool.describe(ON_GPU)
        return list(await asyncio.gather(*(pool.evaluate(OTHER, kernel(n)) for n in range(4))))

    found = asyncio.run(several())
    assert {(each.status, each.cause) for each in found} == {
        (Status.INFRASTRUCTURE_ERROR, "the reference cannot judge a kernel: zeros would pass")
    }
    assert sum(host.measured.values()) == 1
    assert pool.devices_set_aside == {}


def test_a_reference_that_was_fit_fails_by_its_device() -> None:
    host = FakeHost(devices=2)
    host.measuring = [lambda: CORRECT, find_unfit]
    assert asyncio.run(judged(Pool(host), count=3)) == [Status.CORRECT] * 3


def test_retries_are_told_in_a_line_and_counted(caplog: pytest.LogCaptureFixture) -> None:
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
        f"{12 + TRIES - 1} times in all a kernel was tried again: ValueError: seven",
    ]


# Devices: which is chosen, and which is used no more.

OTHER = replace(ON_GPU, name="level1/other", source="class Model: pass")


async def judged(
    pool: Pool, *, count: int, first: int = 0, problem: Problem = ON_GPU, at_once: int = 1
) -> list[Status]:
    """Evaluates new kernels, a few at a time."""
    found = []
    for n in range(first, first + count, at_once):
        some = [pool.evaluate(problem, kernel(m)) for m in range(n, min(n + at_once, first + count))]
        found += [each.status for each in await asyncio.gather(*some)]
    return found


def test_a_retry_goes_to_another_device() -> None:
    host = FakeHost(devices=2)
    host.measuring = [break_down]
    assert evaluated(host).status is Status.CORRECT
    assert {device for device, _ in host.order} == {0, 1}


def test_a_device_that_fails_twice_is_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    host = FakeHost(devices=3, cores=3)
    host.sick = {1}
    pool = Pool(host)
    assert asyncio.run(judged(pool, count=21, at_once=3)) == [Status.CORRECT] * 21
    assert list(pool.devices_set_aside) == [1]
    assert "the device is lost" in pool.devices_set_aside[1]
    assert host.used[1] == 2
    assert sum("set aside" in record.message for record in caplog.records) == 1


def test_kernels_that_fail_everywhere_set_nothing_aside() -> None:
    """A hostile kernel may bring workers down; it must not be able to take devices from the others."""
    host = FakeHost(devices=3)
    host.measuring = [die] * 8 + [break_down] * 3 * TRIES
    pool = Pool(host)
    statuses = asyncio.run(judged(pool, count=8))
    assert statuses == [Status.CRASHED] * 4 + [Status.INFRASTRUCTURE_ERROR] * 3 + [Status.CORRECT]
    assert pool.devices_set_aside == {}


def test_a_device_that_fails_now_and_then_is_kept() -> None:
    host = FakeHost(devices=2)
    pool = Pool(host)

    async def several() -> None:
        for n in range(6):
            host.measuring = [break_down]
            await judged(pool, first=3 * n, count=3)

    asyncio.run(several())
    assert pool.devices_set_aside == {}


def test_when_every_device_fails_the_answer_is_ours_to_blame() -> None:
    host = FakeHost(devices=2)
    pool = Pool(host)

    async def several() -> list[Status]:
        await pool.describe(ON_GPU)
        host.sick = {0, 1}
        return await asyncio.wait_for(judged(pool, count=5), 10)

    assert asyncio.run(several()) == [Status.INFRASTRUCTURE_ERROR] * 5


def test_a_problem_opens_where_the_first_device_is_lost() -> None:
    host = FakeHost(devices=2)
    host.sick = {0}
    assert asyncio.run(judged(Pool(host), count=3)) == [Status.CORRECT] * 3


def test_a_device_that_becomes_slow_is_set_aside(caplog: pytest.LogCaptureFixture) -> None:
    host = FakeHost(devices=2, cores=2)
    host.canaries_ms = {0: 1.0, 1: 1.0}
    pool = Pool(host)

    async def several() -> None:
        await judged(pool, count=20, at_once=2)
        assert pool.devices_set_aside == {}
        host.canaries_ms[0] = 1.4
        await judged(pool, first=20, count=20, at_once=2)

    asyncio.run(several())
    assert list(pool.devices_set_aside) == [0]
    assert [device for device, _ in host.order[-10:]] == [1] * 10
    assert sum("set aside" in record.message for record in caplog.records) == 1


def test_the_last_device_is_kept_when_it_becomes_slow(caplog: pytest.LogCaptureFixture) -> None:
    host = FakeHost()
    host.canaries_ms = {0: 1.0}
    pool = Pool(host)

    async def several() -> list[Status]:
        await judged(pool, count=6)
        host.canaries_ms[0] = 2.0
        return await judged(pool, first=6, count=6)

    assert asyncio.run(several()) == [Status.CORRECT] * 6
    assert sum("kept" in record.message for record in caplog.records) == 1


def test_only_one_problem_is_opened_for_the_devices_facts() -> None:
    """Builds need no more; the others are opened when they are measured."""
    host = FakeHost()

    async def both() -> None:
        pool = Pool(host)
        await asyncio.gather(*(judged(pool, count=3, problem=each) for each in (ON_GPU, OTHER)))

    asyncio.run(both())
    assert len(host.opened) == 1


def changes(order: list[tuple[int, str]]) -> int:
    """How often a device has had to open another problem."""
    open_there: dict[int, str] = {}
    changed = 0
    for device, problem in order:
        changed += open_there.get(device, problem) != problem
        open_there[device] = problem
    return changed


@pytest.mark.parametrize("devices", [1, 2])
def test_a_device_stays_with_the_problem_that_it_has_open(devices: int) -> None:
    host = FakeHost(devices=devices, cores=32, work_s=0.001)

    async def both() -> None:
        pool = Pool(host)
        for each in (ON_GPU, OTHER):
            await pool.describe(each)
        mixed = [(each, n) for n in range(8) for each in (ON_GPU, OTHER)]
        await asyncio.gather(*(pool.evaluate(each, kernel(n)) for each, n in mixed))

    asyncio.run(both())
    assert len(host.order) == 16
    assert changes(host.order) <= 2


def test_a_problem_with_much_to_do_does_not_starve_another() -> None:
    host = FakeHost(work_s=0.001, cores=64)

    async def both() -> int:
        pool = Pool(host)
        for each in (OTHER, ON_GPU):
            await pool.describe(each)
        many = [asyncio.ensure_future(pool.evaluate(ON_GPU, kernel(n))) for n in range(60)]
        await pool.evaluate(OTHER, kernel("other"))
        undone = sum(not each.done() for each in many)
        await asyncio.gather(*many)
        return undone

    assert asyncio.run(both()) > 30


def compared(host: FakeHost, *names: object, **options: Any) -> list[Evaluation]:
    return asyncio.run(Pool(host).compare(ON_GPU, [kernel(each) for each in names], **options))


def test_kernels_are_compared_in_order_in_one_session() -> None:
    found = compared(host := FakeHost(cores=2), "a", "b", "c")
    assert host.compared == [tuple(kernel(each).id for each in "abc")]
    assert [each.log for each in found] == [f"{kernel(each).id} True" for each in "abc"]
    assert host.archives == {kernel(each).id.encode() for each in "abc"}
    assert {each.build_s for each in found} == {0.25}
    assert compared(FakeHost(), "a", "b", thorough=False)[1].log.endswith("False")


def test_equal_kernels_are_measured_once() -> None:
    found = compared(host := FakeHost(), "a", "b", "a")
    assert host.compared == [(kernel("a").id, kernel("b").id)]
    assert found[0] == found[2] != found[1]


def test_what_cannot_be_built_is_not_compared() -> None:
    host = FakeHost()
    host.building = [lambda: Build(seconds=1.0, status=Status.COMPILE_ERROR, log="no such type")]
    failed, fine = compared(host, "a", "b")
    assert (failed.status, failed.log) == (Status.COMPILE_ERROR, "no such type")
    assert fine.status is Status.CORRECT
    assert host.compared == [(kernel("b").id,)]


@pytest.mark.parametrize("act", [die, break_down])
def test_a_comparison_that_is_lost_is_made_again(act: Act) -> None:
    host = FakeHost(devices=2)
    host.measuring = [act]
    assert [each.status for each in compared(host, "a", "b")] == [Status.CORRECT] * 2
    assert len(host.compared) == 2
    assert host.built.total() == 2, "builds outlast it"
    host = FakeHost()
    host.measuring = [act] * TRIES
    found = compared(host, "a", "b")
    assert [each.status for each in found] == [Status.INFRASTRUCTURE_ERROR] * 2
    assert found[0].log in ("the node is gone", "the judge process died")


# Real hosts, on this machine's CPU.

WRONG = forward("return x")
BAD = "def f(:"


def real(source: str) -> Kernel:
    return Kernel(source=source, language="cpp")


async def three_kernels(pool: Pool) -> None:
    facts = await pool.describe(PROBLEM)
    assert {"device", "torch"} <= set(facts)
    found = await asyncio.gather(*(pool.evaluate(PROBLEM, real(s)) for s in (HONEST, WRONG, BAD)))
    assert [each.status for each in found] == [Status.CORRECT, Status.INCORRECT, Status.COMPILE_ERROR], found
    assert "SyntaxError" in found[2].log
    assert all(each.build_s > 0 for each in found)
    again = await pool.compare(PROBLEM, [real(s) for s in (WRONG, HONEST, BAD)], thorough=False)
    assert [each.status for each in again] == [Status.INCORRECT, Status.CORRECT, Status.COMPILE_ERROR], again


@pytest.fixture
def clean(marked: Marked) -> Iterator[Marked]:
    yield marked
    assert gone(marked), marked()


@pytest.mark.slow
def test_threads_of_this_process(clean: Marked) -> None:
    before = set(scratch_root("x").parent.glob("*"))
    pool = Pool(LocalHost(settings=SETTINGS, on_gpu=False))
    try:
        asyncio.run(three_kernels(pool))
    finally:
        pool.close()
    left = set(scratch_root("x").parent.glob(f"local-{os.getpid()}-*")) - before
    assert left == set()


BROKEN = Problem(name="file/broken", source=REFERENCE.replace("return x\n", "raise ValueError('seven')\n"))


@pytest.mark.slow
def test_a_killed_actor_loses_nothing(clean: Marked, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL to the process that holds the device, in the middle of an evaluation."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-planted")
    pool = Pool(host := RayHost(settings=replace(SETTINGS, timeout_s=30.0), on_gpu=False))
    stages: list[str] = []
    killed: list[int] = []
    niceness: int | None = None

    async def pid_of_actor() -> int:
        return int(await host._actors[0].__ray_call__.remote(lambda worker: os.getpid()))

    async def evaluation() -> Evaluation:
        with pytest.raises(UnfitProblem, match="ValueError: seven"):
            await pool.describe(BROKEN)
        await three_kernels(pool)
        victim = await pid_of_actor()
        nonlocal niceness
        niceness = os.getpriority(os.PRIO_PROCESS, victim)

        async def kill_soon() -> None:
            await asyncio.sleep(0.5)
            killed.extend([victim, *process_tree.descendants(victim)])
            os.kill(victim, signal.SIGKILL)

        killers: list[Awaitable[None]] = []

        def note(stage: str) -> None:
            stages.append(stage)
            if stage == "measuring" and not killers:
                killers.append(asyncio.ensure_future(kill_soon()))

        slow = forward(
            "time.sleep(0.15)\nreturn honest(self, x)", before="assert 'OPENAI_API_KEY' not in os.environ"
        )
        found = await pool.evaluate(PROBLEM, real(slow), on_stage=note)
        await asyncio.gather(*killers)
        assert await pid_of_actor() != victim
        return found

    try:
        found = asyncio.run(evaluation())
        assert found.status is Status.CORRECT, found
        assert niceness == os.nice(0), "Ray has made what is measured give way to all else"
        assert [stage for stage in stages if stage in ("building", "measuring")] == [
            "building",
            "measuring",
            "measuring",
        ]
        assert "checking" in stages
        assert len(killed) >= 4, "the actor, its fork server, its judge process and their runners"
        deadline = time.monotonic() + 30
        while (alive := [pid for pid in killed if is_alive(pid)]) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert alive == []
    finally:
        pool.close()
    assert not host._root.exists()


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
