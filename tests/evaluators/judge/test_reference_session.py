"""The reference session, as far as it can be tested without a process or a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from evaluators.judge.device_memory import DeviceMemory
from evaluators.judge.reference_session import RECENT_S, ReferenceSession
from evaluators.judge.staging import Staging
from evaluators.records.opening import Steps
from evaluators.records.timing import Block, Plan
from evaluators.runner.shared_buffers import SharedBuffers


@pytest.mark.parametrize(("count", "calls"), [(1, 24), (2, 24), (3, 24), (5, 12), (30, 2), (100, 1)])
def test_shared_buffers_of_several_candidates_fit_the_memory(count: int, calls: int) -> None:
    tensors = [torch.zeros(3, 5)]
    session = object.__new__(ReferenceSession)
    session.device, session.capacity, session.memory = "cpu", 24, DeviceMemory("cpu")
    session._staging, session.buffers = (
        Staging(tensors, 24, "cpu"),
        SharedBuffers(tensors, tensors, 24, "cpu"),
    )
    with session.buffer_sets(count) as found:
        assert session.capacity == calls
        assert len({each.memory.data_ptr() for each in found}) == len(found) == count
        assert found[0] is session.buffers
        assert all(each.inputs.calls == calls for each in found[1:])
        assert {each.output_views[0][0].shape for each in found} == {(3, 5)}
    assert session.capacity == 24


def test_a_quick_measurement_on_a_gpu_relies_on_a_recent_baseline(monkeypatch: pytest.MonkeyPatch) -> None:
    now, measured = [100.0], list[int]()
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    session = ReferenceSession.__new__(ReferenceSession)
    session._alone, session.capacity, session.clock = None, 64, Steps()

    def alone(calls: int) -> list[Block]:
        measured.append(calls)
        return [Block(calls=calls, wall_ms=1.0)]

    def with_blocks(block_ms: float, *, renew: bool, queues: bool = True) -> int:
        """How many times the baseline was measured so far."""
        session.calibration = SimpleNamespace(
            queues=queues,
            renew_overhead=lambda: None,
            eager_alone=alone,
            eager_calls=lambda plan, capacity: int(plan.block_ms),
        )  # type: ignore[assignment]
        session.eager_alone(Plan(block_ms=block_ms, precision=0.1, max_s=1.0), renew=renew)
        return len(measured)

    assert with_blocks(4.0, renew=False) == 1, "none was measured yet"
    assert with_blocks(4.0, renew=False) == 1
    assert with_blocks(8.0, renew=False) == 2, "blocks of another size"
    assert with_blocks(8.0, renew=True) == 3
    assert with_blocks(8.0, renew=False, queues=False) == 4, "on a CPU load changes within seconds"
    now[0] += RECENT_S
    assert with_blocks(8.0, renew=False) == 5, "too old"
