"""The reference session, as far as it can be tested without a process or a device."""

from __future__ import annotations

import pytest
import torch

from evaluators.judge.device_memory import DeviceMemory
from evaluators.judge.reference_session import ReferenceSession
from evaluators.judge.staging import Staging
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
