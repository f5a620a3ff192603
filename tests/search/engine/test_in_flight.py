from __future__ import annotations

import asyncio
import time

import pytest

from search.engine.in_flight import InFlight


async def answer(value: int, after_s: float = 0.0) -> int:
    await asyncio.sleep(after_s)
    return value


async def fails() -> None:
    raise LookupError("gone")


def test_drain_waits_for_all_also_for_work_that_work_starts() -> None:
    async def scenario() -> list[int]:
        work, done = InFlight(), []

        async def grows(depth: int) -> None:
            done.append(await answer(depth, 0.001))
            if depth:
                work.spawn(grows(depth - 1), "grows")

        work.spawn(grows(3), "grows")
        await work.drain(0.0)
        return done

    assert asyncio.run(scenario()) == [3, 2, 1, 0]


def test_tasks_in_flight_are_counted_by_name() -> None:
    async def scenario() -> tuple[int, int]:
        work = InFlight()
        for name in ("evaluate variant a", "evaluate variant b", "propose in round 1"):
            work.spawn(answer(1, 0.01), name)
        before = work.count("evaluate", "compare")
        await work.drain(1.0)
        return before, work.count("evaluate", "compare")

    assert asyncio.run(scenario()) == (2, 0)


def test_an_error_asks_for_a_stop_and_the_rest_has_its_grace(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> tuple[str | None, int, bool]:
        work = InFlight()
        soon, late = work.spawn(answer(1, 0.02), "soon"), work.spawn(answer(2, 60.0), "late")
        work.spawn(fails(), "looking it up")
        began = time.monotonic()
        await work.drain(0.1)
        assert 0.1 <= time.monotonic() - began < 5.0
        return work.stop, soon.result(), late.cancelled()

    assert asyncio.run(scenario()) == ("error: looking it up: LookupError: gone", 1, True)
    assert "looking it up failed" in caplog.text


def test_the_first_reason_to_stop_counts() -> None:
    work = InFlight()
    work.request_stop("interrupted")
    work.request_stop("terminated")
    assert work.stop == "interrupted"
