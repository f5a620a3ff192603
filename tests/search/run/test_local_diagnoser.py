"""Profiles on this machine, started and ended by a search."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from evaluators.device.settings import Settings
from evaluators.profiling.profiler import KernelProfiler, ProfileFailed
from search.run.local_diagnoser import LocalDiagnoser
from tests.search.fakes import PROBLEM, correct, kernel


def test_a_cancelled_profile_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a command that ends leaves no process."""
    told: list[str] = []

    def profile(self: KernelProfiler, *_: Any, **__: Any) -> None:
        told.append("begun")
        while not self._stopping.is_set():
            time.sleep(0.001)
        time.sleep(0.05)  # its processes end
        told.append("ended")
        raise ProfileFailed("the profiled kernel was stopped")

    monkeypatch.setattr(KernelProfiler, "profile", profile)

    async def main() -> None:
        asked = asyncio.create_task(
            LocalDiagnoser(Settings(), "auto").diagnose(PROBLEM, kernel("a"), correct(2.0))
        )
        while not told:
            await asyncio.sleep(0.001)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert told == ["begun", "ended"]

    asyncio.run(main())
