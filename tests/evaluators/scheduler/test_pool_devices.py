"""Which device is chosen, and which is no longer used."""

from __future__ import annotations

import asyncio

import pytest

from evaluators.records.evaluation import Status
from evaluators.scheduler.lanes import TRIES
from evaluators.scheduler.pool import Pool
from tests.evaluators.scheduler.fake_host import (
    ON_GPU,
    OTHER,
    FakeHost,
    break_down,
    die,
    evaluated,
    judged,
    kernel,
    leave,
)


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


def test_a_device_that_is_gone_is_used_again_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    """However often it goes; and the last one stays in use."""
    host = FakeHost(devices=2, cores=2)
    pool = Pool(host)

    async def several() -> None:
        for first, gone in ((0, 1), (20, 1), (40, 0)):
            host.gone = {gone}
            assert await judged(pool, first=first, count=8, at_once=2) == [Status.CORRECT] * 8
            assert "the node is gone" in pool.devices_set_aside[gone]
            host.gone, before = set(), host.used[gone]
            assert await judged(pool, first=first + 10, count=8, at_once=2) == [Status.CORRECT] * 8
            assert pool.devices_set_aside == {} and host.used[gone] > before
        host.gone = {0, 1}
        assert await judged(pool, first=90, count=3) == [Status.INFRASTRUCTURE_ERROR] * 3
        host.gone = {0}
        assert await judged(pool, first=100, count=8, at_once=2) == [Status.CORRECT] * 8
        assert list(pool.devices_set_aside) == [0] and pool._devices.in_use == {1}

    asyncio.run(several())
    assert sum("is back" in record.message for record in caplog.records) == 4


def test_what_befell_a_device_that_was_gone_does_not_count_against_its_successor() -> None:
    """It may be back before the kernels that met nothing there have their verdicts elsewhere."""
    host = FakeHost(devices=2)
    pool = Pool(host)

    async def several() -> None:
        for first in range(0, 9, 3):
            host.measuring = [leave]
            assert await judged(pool, first=first, count=3) == [Status.CORRECT] * 3

    asyncio.run(several())
    assert pool.devices_set_aside == {} and pool._devices.in_use == {0, 1}


def test_kernels_that_fail_everywhere_set_nothing_aside() -> None:
    """A hostile kernel may kill workers, but must not take devices from the others."""
    host = FakeHost(devices=3)
    host.measuring = [die] * 4 * TRIES + [break_down] * 3 * TRIES
    pool = Pool(host)
    statuses = asyncio.run(judged(pool, count=8))
    assert statuses == [Status.INFRASTRUCTURE_ERROR] * 7 + [Status.CORRECT]
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


def test_a_problem_opens_although_the_first_device_is_lost() -> None:
    host = FakeHost(devices=2)
    host.sick = {0}
    assert asyncio.run(judged(Pool(host), count=3)) == [Status.CORRECT] * 3


@pytest.mark.slow
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
    assert sum("stays in use" in record.message for record in caplog.records) == 1


def test_only_one_problem_is_opened_for_the_devices_facts() -> None:
    """Builds need no more; other problems are opened when they are measured."""
    host = FakeHost()

    async def both() -> None:
        pool = Pool(host)
        await asyncio.gather(*(judged(pool, count=3, problem=each) for each in (ON_GPU, OTHER)))

    asyncio.run(both())
    assert len(host.opened) == 1


def changes(order: list[tuple[int, str]]) -> int:
    """How often a device had to open another problem."""
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
