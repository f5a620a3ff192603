"""What is known about times before judging, with a baseline whose blocks take the time that a test sets."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from evaluators.judge.staging import Batch, Staging
from evaluators.judge.timing.calibration import Calibration
from evaluators.judge.timing.cpu_timing import CpuCalibration
from evaluators.judge.timing.gpu_timing import GpuCalibration, GpuRunnerClient
from evaluators.records.timing import Block, Overhead
from evaluators.runner.shared_buffers import Layout


class Eager(GpuRunnerClient):
    """A baseline whose blocks have this overhead now."""

    def __init__(self, total_ms: float, *, late: bool = False) -> None:
        self._total_ms, self.late = total_ms, late

    def overhead(self, batch: Batch) -> Overhead:
        assert batch.calls == 64
        return Overhead(total_ms=self._total_ms, delivery_ms=0.0)


@pytest.mark.parametrize(
    ("kind", "now_ms", "overstated"),
    [
        (GpuCalibration, 1.0, False),
        (GpuCalibration, 0.9, False),
        (GpuCalibration, 0.5, True),
        (GpuCalibration, 2.0, False),
        (CpuCalibration, 0.5, False),
    ],
)
def test_an_overhead_is_overstated_if_it_is_lower_now(
    kind: type[Calibration], now_ms: float, overstated: bool
) -> None:
    calibration = object.__new__(kind)
    calibration._drift_ms = 0.0  # type: ignore[attr-defined]
    calibration._overheads = {64: Overhead(total_ms=1.0, delivery_ms=0.0)}
    calibration._eager = Eager(now_ms)
    calibration._staging = Staging([torch.empty(1)], 64, "cpu")
    assert calibration.overstates(64) is overstated


@pytest.mark.parametrize(
    ("change", "now_ms", "late", "of_64_ms", "of_1_ms"),
    [
        ("renew_overhead", 1.25, False, 1.25, 0.75),
        ("lower_overhead", 1.25, False, 1.0, 0.5),
        ("renew_overhead", 0.75, False, 0.75, 0.25),
        ("lower_overhead", 0.75, False, 0.75, 0.25),
        ("renew_overhead", 0.75, True, 1.0, 0.5),
        ("renew_overhead", 0.0, False, 0.25, 0.0),
    ],
)
def test_the_overhead_follows_the_machines_load(
    change: str, now_ms: float, late: bool, of_64_ms: float, of_1_ms: float
) -> None:
    """In both directions before a candidate is loaded, only down while it is; equally for blocks of all
    sizes, except one that was not queued in time, and never below the time for copying."""
    calibration = object.__new__(GpuCalibration)
    known = {1: Overhead(total_ms=0.5, delivery_ms=0.0), 64: Overhead(total_ms=1.0, delivery_ms=0.25)}
    calibration._overheads, calibration._usual_calls, calibration._drift_ms = known, 64, 0.0
    calibration._eager = Eager(now_ms, late=late)
    calibration._staging = Staging([torch.empty(1)], 64, "cpu")
    getattr(calibration, change)()
    assert calibration.overhead(64) == Overhead(total_ms=of_64_ms, delivery_ms=0.25)
    assert calibration.overhead(1) == Overhead(total_ms=of_1_ms, delivery_ms=0.0)
    calibration._eager = Eager(1.0)
    calibration.renew_overhead()
    assert {n: calibration.overhead(n) for n in known} == known, "it is as it was"


def test_of_single_long_calls_nothing_is_measured_anew() -> None:
    calibration = object.__new__(GpuCalibration)
    calibration._overheads, calibration._usual_calls = {1: Overhead(total_ms=1.0, delivery_ms=0.0)}, 1
    calibration._drift_ms = 0.0
    calibration._eager = Eager(9.0)
    calibration.renew_overhead()
    assert calibration.overhead(1).total_ms == 1.0


@pytest.mark.parametrize(("elements", "slack_ms"), [(2**20, 0.005), (2**28, 0.405)])
def test_the_slack_grows_if_much_is_copied(elements: int, slack_ms: float) -> None:
    """A reference with 1 GiB to copy in and out took a tenth longer next to a kernel than before."""
    calibration = object.__new__(GpuCalibration)
    calibration._drift_ms = 0.0
    calibration._overheads = {2: Overhead(total_ms=4.0, delivery_ms=0.0)}
    tensor = torch.empty(elements, device="meta")
    layout = Layout.of([tensor], 2)
    calibration._eager = SimpleNamespace(buffers=SimpleNamespace(inputs=layout, outputs=layout))  # type: ignore[assignment]
    assert calibration.slack_ms(2) == pytest.approx(slack_ms)


@pytest.mark.parametrize(("calls", "accused"), [(256, True), (1, False)])
def test_a_baseline_in_short_blocks_is_not_called_sabotaged(calls: int, accused: bool) -> None:
    """Next to an honest kernel of 512 launches its blocks had one call, which took 0.35 ms in place of 0.037
    ms: the time in which the GPU wakes up is no longer shared."""
    calibration = object.__new__(GpuCalibration)
    calibration._short_block_ms, calibration._usual_calls = 0.31, 256
    calibration.slack_ms = lambda calls: 0.01 / calls  # type: ignore[method-assign]
    reason = calibration.sabotage([0.037] * 6, [0.35] * 8, calls)
    assert (reason is not None) == accused
    assert (calibration.credible_ms([0.037] * 6, calls) < 0.35) == accused


@pytest.mark.parametrize(("alone_ms", "accused"), [(0.36, False), (0.04, True)])
def test_what_short_blocks_take_without_the_kernel_is_expected_next_to_it(
    alone_ms: float, accused: bool
) -> None:
    calibration = object.__new__(GpuCalibration)
    calibration._short_block_ms, calibration._usual_calls = 0.1, 256
    calibration.slack_ms = lambda calls: 0.01 / calls  # type: ignore[method-assign]
    calibration.overhead = lambda calls: Overhead(total_ms=0.5, delivery_ms=0.0)  # type: ignore[method-assign]
    calibration.eager_alone = lambda calls: [Block(calls=1, wall_ms=0.5 + alone_ms)] * 3  # type: ignore[method-assign]
    assert calibration.sabotage([0.037] * 6, [0.35] * 8, 1)
    calibration.learn_short_blocks([0.037] * 6, 1)
    assert bool(calibration.sabotage([0.037] * 6, [0.35] * 8, 1)) == accused
    assert calibration.sabotage([0.037] * 6, [0.05] * 8, 256), "usual blocks have no more slack than before"
