"""What the runners of a device may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from evaluators.device.child_processes import RUNNER_CORES, RunnerSpecs, runner_cores
from evaluators.records.problem import Problem
from evaluators.system.cuda_driver import Gpu


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


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_cpu_a_waiting_runner_gets_its_pages_before_it_is_needed(device: str, tmp_path: Path) -> None:
    gpu = Gpu(architecture="9.0", variables={}, files=(), number=0) if device == "cuda" else None
    problem = Problem(name="any", source="class Model: ...", device=device)
    specs = RunnerSpecs(problem=problem, gpu=gpu, cpu_s=60, compile_mode="")
    assert specs.candidate(tmp_path)["poisons"] == (device == "cpu")
    assert not specs.baseline(tmp_path, "eager")["poisons"]
