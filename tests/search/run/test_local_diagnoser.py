"""Profiles on this machine, started and ended by a search."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from evaluators.device.settings import Settings
from evaluators.profiling.profiler import KernelProfiler, ProfileFailed
from evaluators.records.diagnosis import Diagnosis
from evaluators.records.problem import Kernel, Problem
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


def test_kernels_are_profiled_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share the device."""
    running: list[str] = []

    def profile(self: KernelProfiler, problem: Problem, kernel: Kernel, **_: Any) -> Diagnosis:
        running.append(kernel.id)
        time.sleep(0.02)
        assert running == [kernel.id]
        running.remove(kernel.id)
        return Diagnosis(reached=("static",))

    monkeypatch.setattr(KernelProfiler, "profile", profile)

    async def main() -> list[Diagnosis]:
        diagnoser = LocalDiagnoser(Settings(), "auto")
        asked = (diagnoser.diagnose(PROBLEM, kernel(name), correct(2.0)) for name in range(3))
        return await asyncio.gather(*asked)

    assert [each.reached for each in asyncio.run(main())] == [("static",)] * 3
