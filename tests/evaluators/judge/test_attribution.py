"""How a candidate is traced or sampled, without a device or a runner."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluators.isolation.scratch import SOURCE
from evaluators.judge.attribution import attribution as attributions
from evaluators.judge.attribution.attribution import (
    BATCH_SAMPLES,
    CALLS,
    MOST_BATCH_BYTES,
    MOST_BATCH_CALLS,
    Attribution,
    attribution,
)
from evaluators.judge.attribution.stack_samples import PLAIN_SAMPLES, StackSamples
from evaluators.judge.attribution.vendor_kernels import VendorKernels, _mark
from evaluators.judge.runner_client import CandidateRefused
from evaluators.judge.staging import Batch
from evaluators.judge.timing.cpu_timing import CpuRunnerClient
from evaluators.judge.timing.gpu_timing import GpuRunnerClient
from evaluators.records.problem import Problem

TANH = "_ZN2at6native11tanh_kernelIfEEvPT_"


def session(device: str, libraries: str = "no_library", output_bytes: int = 1) -> Any:
    known = VendorKernels(frozenset([_mark(TANH), _mark("shipped")]))
    return SimpleNamespace(
        device=device,
        problem=Problem(name="test", source="class Model: ...", libraries=libraries),
        capacity=2 * CALLS,
        vendor_kernels=known if device == "cuda" and libraries == "no_library" else None,
        buffers=SimpleNamespace(outputs=SimpleNamespace(call_bytes=output_bytes)),
        stage_fresh=lambda calls, client: Batch(memory=torch.empty(0), calls=calls),
    )


class GpuRunner(GpuRunnerClient):
    """Reports that it ran these kernels."""

    def __init__(self, kernels: list[tuple[str, int]]) -> None:
        self._kernels = kernels

    def trace(self, batch: Batch) -> list[tuple[str, int]]:
        return self._kernels


class CpuRunner(CpuRunnerClient):
    """Is found in a file's code this often in a hundred calls."""

    pid = 1

    def __init__(self, *, path: str = "", stack_samples: int = 0) -> None:
        self._path, self._stack_samples = path, stack_samples
        self.rows: list[list[int]] = []

    def run_sampled(self, batch: Batch, calls: list[int], stack_samples: StackSamples) -> None:
        self.rows.append(calls)
        for _ in range(len(calls) * self._stack_samples // 100):
            stack_samples._count({self._path})


@pytest.fixture(autouse=True)
def can_peek(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attributions, "can_peek", lambda: True)


def attribute(judge: Any, runner: GpuRunner | CpuRunner, scratch: Path) -> Attribution:
    found = attribution(judge, runner, str(scratch))
    assert found is not None
    return found


def test_on_a_gpu_the_trace_decides(scratch: Path) -> None:
    (scratch / SOURCE).write_text("def shipped(x): ...")
    found = attribute(session("cuda"), GpuRunner([("shipped", 95), (TANH, 5)]), scratch)
    found.count()
    assert found.own_share == 0.95
    (scratch / SOURCE).write_text("from torch.ops import shipped")
    found = attribute(session("cuda"), GpuRunner([("shipped", 95), (TANH, 5)]), scratch)
    with pytest.raises(CandidateRefused, match="no kernel of its own") as refused:
        found.count()
    assert (refused.value.rule, found.own_share) == ("library", 0.0)


def test_the_source_is_that_of_before_the_candidate_ran(scratch: Path) -> None:
    (scratch / SOURCE).write_text("from torch.ops import shipped")
    found = attribute(session("cuda"), GpuRunner([("shipped", 1)]), scratch)
    (scratch / SOURCE).write_text("def shipped(x): ...")
    with pytest.raises(CandidateRefused):
        found.count()


def test_on_a_cpu_samples_are_taken_until_they_have_seen_enough(scratch: Path) -> None:
    found = attribute(session("cpu"), CpuRunner(path=f"{scratch}/own.so", stack_samples=100), scratch)
    found.count()
    assert found.own_share == 1.0
    runner = CpuRunner(path="/torch/lib/libtorch_cpu.so", stack_samples=100)
    found = attribute(session("cpu"), runner, scratch)
    with pytest.raises(CandidateRefused, match="libtorch_cpu") as refused:
        found.count()
    assert (refused.value.rule, found.own_share) == ("library", 0.0)
    lengths = [len(row) for row in runner.rows]
    assert lengths[:3] == [1, 2, 4]
    assert max(lengths) == BATCH_SAMPLES, "a row is no longer than it has to be"
    assert sum(lengths) < PLAIN_SAMPLES + BATCH_SAMPLES
    assert set(runner.rows[-1]) == set(range(CALLS)), "different inputs"


@pytest.mark.parametrize(
    ("output_bytes", "longest"),
    [(1, MOST_BATCH_CALLS), (MOST_BATCH_BYTES // 5, 5), (10 * MOST_BATCH_BYTES, 1)],
)
def test_a_kernel_that_is_rarely_seen_is_not_rejected(
    scratch: Path, monkeypatch: pytest.MonkeyPatch, output_bytes: int, longest: int
) -> None:
    monkeypatch.setattr(attributions, "PATIENCE_S", 0.05)
    runner = CpuRunner()
    found = attribute(session("cpu", output_bytes=output_bytes), runner, scratch)
    found.count()
    assert found.own_share is None
    assert max(map(len, runner.rows)) == longest


@pytest.mark.parametrize(("device", "runner"), [("cpu", CpuRunner()), ("cuda", GpuRunner([]))])
def test_no_samples_are_taken_if_any_library_is_allowed(
    device: str, runner: GpuRunner | CpuRunner, scratch: Path
) -> None:
    assert attribution(session(device, "any"), runner, str(scratch)) is None


def test_no_samples_are_taken_if_the_machine_forbids_it(
    scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attributions, "can_peek", lambda: False)
    assert attribution(session("cpu"), CpuRunner(), str(scratch)) is None
