"""What the runners of a device may use."""

from __future__ import annotations

import os

import pytest

from evaluators.device.child_processes import RUNNER_CORES, runner_cores


@pytest.mark.parametrize(("cores", "gpus"), [(1, 2), (2, 1), (6, 2), (16, 1), (32, 2), (64, 8), (128, 8)])
def test_gpus_use_different_cores_if_there_are_enough(
    monkeypatch: pytest.MonkeyPatch, cores: int, gpus: int
) -> None:
    allowed = set(range(100, 100 + cores))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: allowed)
    given = [runner_cores(number) for number in range(gpus)]
    for each in given:
        assert set(each) <= allowed
        assert len(each) == max(1, min(RUNNER_CORES, cores // 2))
    if cores >= gpus * RUNNER_CORES:
        assert len({core for each in given for core in each}) == gpus * RUNNER_CORES
