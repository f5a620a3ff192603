"""The clocks of the GPU that a worker measures on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.device import worker as module
from evaluators.device.worker import Worker
from evaluators.records.evaluation import CLOCKS_AFTER, CLOCKS_BEFORE, Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from evaluators.records.verdict import Verdict
from evaluators.system.cuda_driver import Gpu
from evaluators.system.nvml import GpuState
from tests.evaluators.device.kernels import HONEST, PROBLEM, SETTINGS

UUID = "GPU-00000000-0000-0000-0000-000000000001"


class Processes:
    facts = {"device": "a GPU"}  # noqa: RUF012  (nobody changes it)


def measured(monkeypatch: pytest.MonkeyPatch, root: Path, problem: Problem, *told: GpuState) -> Evaluation:
    """An evaluation by a worker whose GPU is in these states in turn."""
    worker, states = Worker(root=root, settings=SETTINGS), iter(told)
    gpu = Gpu(architecture="9.0", variables={"CUDA_VISIBLE_DEVICES": UUID}, files=(), number=0)
    worker.__dict__["gpu"] = gpu  # what it would ask the driver for
    monkeypatch.setattr(worker, "_opened", lambda problem, stages: Processes())
    monkeypatch.setattr(worker, "_runner", lambda *_: None)
    monkeypatch.setattr(worker, "_try_candidate", lambda *_: Verdict(status=Status.INCORRECT))
    monkeypatch.setattr(module, "state_of", lambda uuid: next(states) if uuid == UUID else GpuState())
    return worker.measure(problem, Kernel(source=HONEST, language="cpp"), b"")


def test_they_are_noted_before_and_after(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    on_gpu = replace(PROBLEM, device="cuda")
    cold, hot = GpuState(sm_mhz=1980, power_w=98.5), GpuState(sm_mhz=1755, power_w=612.5)
    found = measured(monkeypatch, tmp_path, on_gpu, cold, hot).environment
    assert found == {"device": "a GPU", CLOCKS_BEFORE: cold.text(), CLOCKS_AFTER: hot.text()}
    found = measured(monkeypatch, tmp_path, on_gpu, GpuState(), GpuState()).environment
    assert found == Processes.facts, "the clocks are unknown"


def test_a_cpu_has_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert measured(monkeypatch, tmp_path, PROBLEM).environment == Processes.facts
