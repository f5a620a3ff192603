"""A page that is kept fresh: at most once in a minute, and only where something has changed."""

from __future__ import annotations

import asyncio
import logging

import pytest

from search.report import fresh_page
from search.report.fresh_page import EVERY_S, FreshPage


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(fresh_page, "time", found)
    return found


def test_it_is_written_at_most_once_in_a_minute(clock: Clock) -> None:
    written: list[float] = []
    page = FreshPage(lambda: written.append(clock.now), wanted=True)
    for _ in range(5 * int(EVERY_S)):
        page.change()
        clock.now += 0.5
    assert written == [1000.0, 1000.0 + EVERY_S, 1000.0 + 2 * EVERY_S]


@pytest.mark.slow
def test_a_change_that_came_too_soon_is_shown_in_its_turn(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fresh_page, "POLL_S", 0.001)
    written: list[float] = []
    page = FreshPage(lambda: written.append(clock.now), wanted=True)

    async def minutes() -> None:
        async with page.kept():
            page.change()
            page.change()
            for _ in range(4):
                clock.now += EVERY_S
                await asyncio.sleep(0.05)
        clock.now += EVERY_S
        page.change()

    asyncio.run(minutes())
    assert written == [1000.0 + EVERY_S * minute for minute in (0, 1, 5)], "without a change there is none"


def test_none_is_written_that_is_not_wanted_or_cannot_be(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    FreshPage(lambda: written.append(1), wanted=False).change()
    monkeypatch.setattr(fresh_page, "missing_packages", lambda: ["plotly"])
    FreshPage(lambda: written.append(1), wanted=True).change()
    assert not written


def test_a_page_that_cannot_be_written_ends_nothing(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    tries: list[int] = []

    def write() -> None:
        tries.append(1)
        raise OSError("no space left")

    page = FreshPage(write, wanted=True)
    with caplog.at_level(logging.WARNING):
        page.change()
        page.change()
    assert len(tries) == 1
    assert "cannot write the report: no space left" in caplog.text
