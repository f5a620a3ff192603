"""What the judge process knows, as far as that can be seen without a process or a device."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from evaluators.judge.reference_session import ReferenceSession
from evaluators.runner.shared_buffers import Layout, SharedBuffers
from evaluators.timing import Overhead


class Eager:
    """A baseline whose blocks cost so much besides now."""

    def __init__(self, total_ms: float) -> None:
        self._total_ms = total_ms

    def overhead(self, calls: int) -> Overhead:
        assert calls == 64
        return Overhead(total_ms=self._total_ms, delivery_ms=0.0)


@pytest.mark.parametrize(
    ("device", "now_ms", "overstated"),
    [
        ("cuda", 1.0, False),
        ("cuda", 0.9, False),
        ("cuda", 0.5, True),
        ("cuda", 2.0, False),
        ("cpu", 0.5, False),
    ],
)
def test_what_a_block_costs_besides_is_overstated_where_it_costs_less_now(
    device: str, now_ms: float, overstated: bool
) -> None:
    session = object.__new__(ReferenceSession)
    session.device = device
    session._overheads = {64: Overhead(total_ms=1.0, delivery_ms=0.0)}
    session.eager = Eager(now_ms)  # type: ignore[assignment]
    assert session.overstates(64) is overstated


@pytest.mark.parametrize(("elements", "slack_ms"), [(2**20, 0.005), (2**28, 0.405)])
def test_what_is_copied_may_vary_where_it_is_much(elements: int, slack_ms: float) -> None:
    """A reference of which 1 GiB is copied in and out took a tenth longer beside a kernel than before."""
    session = object.__new__(ReferenceSession)
    session.device = "cuda"
    session._overheads = {2: Overhead(total_ms=4.0, delivery_ms=0.0)}
    tensor = torch.empty(elements, device="meta")
    layout = Layout.of([tensor], 2)
    session.buffers = SimpleNamespace(inputs=layout, outputs=layout)  # type: ignore[assignment]
    assert session.slack_ms(2) == pytest.approx(slack_ms)


class Runner:
    """A side whose blocks are late from so many calls on; 1 waits in every call."""

    def __init__(self, late_from: int) -> None:
        self.late, self._late_from = False, late_from
        self.asked: list[int] = []

    def block(self, calls: int) -> None:
        self.late = calls >= self._late_from
        self.asked.append(calls)


@pytest.mark.parametrize(
    ("late_from", "calls", "room", "asked"),
    [
        (1000, 192, 256, [192]),
        (100, 64, 256, [64]),
        (100, 192, 96, [192, 96]),
        (2, 192, 1, [192, 96, 48, 24, 12, 6, 3, 1]),
        (1, 24, 256, [24, 12, 6, 3, 1]),
        (1, 1, 256, [1]),
    ],
)
def test_the_room_of_a_queue(late_from: int, calls: int, room: int, asked: list[int]) -> None:
    session, runner = object.__new__(ReferenceSession), Runner(late_from)
    session.capacity = 256
    runner.block(calls)
    found = session.queue_room(runner, calls)  # type: ignore[arg-type]
    assert (found, runner.asked) == (room, asked)


@pytest.mark.parametrize(("count", "calls"), [(1, 24), (2, 24), (3, 24), (5, 12), (30, 2), (100, 1)])
def test_the_shared_buffers_of_several_candidates_have_room_for_as_many_calls_as_there_is(
    count: int, calls: int
) -> None:
    tensors = [torch.zeros(3, 5)]
    session = object.__new__(ReferenceSession)
    session.device, session.capacity = "cpu", 24
    session._places, session.buffers = [tensors], SharedBuffers(tensors, tensors, 24, "cpu")
    with session.buffer_sets(count) as found:
        assert session.capacity == calls
        assert len({each.memory.data_ptr() for each in found}) == len(found) == count
        assert found[0] is session.buffers
        assert all(each.inputs.calls == calls for each in found[1:])
        assert {each.output_views[0][0].shape for each in found} == {(3, 5)}
    assert session.capacity == 24
