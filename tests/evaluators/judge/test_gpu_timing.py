"""Blocks and chains as on a GPU, with a thread as the runner and this process as the device: a module that
waits at the gate is late with every block, like one that waits for the GPU in every call."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluators.judge.staging import Batch, Staging
from evaluators.judge.timing.gpu_timing import FILLING_S, LATE_BLOCKS, GpuCalibration, GpuRunnerClient
from evaluators.records.problem import Problem
from evaluators.reference.inputs import dependent_calls
from evaluators.runner import runner_process
from evaluators.runner.messages import HandedIn, HandIn, Load, RunCalls, order_of
from evaluators.runner.runner_process import RunnerSession
from evaluators.runner.shared_buffers import SharedBuffers, gate_of
from evaluators.system import process_inspection
from evaluators.system.channel import Channel, ChannelClosed

SOURCE = """
import torch
from torch import nn

class Model(nn.Module):
    def forward(self, x, w):
        return torch.tanh(x @ w)

def get_inputs():
    return [torch.randn(6, 6), torch.randn(6, 6)]

def get_init_inputs():
    return []
"""
CALLS = 4
Made = tuple[GpuRunnerClient, list[list[torch.Tensor]], Batch]


@pytest.fixture
def made(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    """A client for a candidate that is the reference itself, and the staged inputs: a list per call, and as a
    batch. With the parameter True its runner frees memory after each block."""

    def at_the_gate(stream: int, address: int, turn: int) -> None:
        gate = gate_of(buffers.memory)
        while int(gate) < turn:
            time.sleep(0.001)

    monkeypatch.setattr(process_inspection, "can_peek", lambda: False)
    monkeypatch.setattr(runner_process, "wait_on_stream", at_the_gate)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=0))
    inputs = [[torch.randn(6, 6), torch.randn(6, 6)] for _ in range(CALLS)]
    buffers = SharedBuffers(inputs[0], [torch.empty(6, 6)], CALLS, "cpu")
    staging = Staging(inputs[0], CALLS, "cpu")
    for call, values in enumerate(inputs):
        staging.place(call, values)
    ours, theirs = Channel.pair()
    body = subprocess.Popen(["sleep", "600"])
    found = GpuRunnerClient(ours, buffers, body.pid)
    load = Load(
        problem=Problem(name="test", source=SOURCE),
        seed=1,
        buffers=buffers.description,
        inputs=buffers.inputs,
        outputs=buffers.outputs,
        arguments={"list": [{"tensor": 0}, {"tensor": 1}]},
        lean=getattr(request, "param", False),
    )
    found._lean = load.lean
    session = RunnerSession({"role": "eager"}, load, os.dup(buffers.fd))
    session._on_gpu = True

    def serve() -> None:
        try:
            while True:
                order = order_of(theirs.receive())
                if isinstance(order, HandIn):
                    session.hand_in(order.place, order.call)
                    theirs.send(HandedIn().message())
                else:
                    assert isinstance(order, RunCalls)
                    session.run(order, theirs)
        except ChannelClosed:
            pass

    thread = threading.Thread(target=serve)
    thread.start()
    yield found, inputs, staging.batch(CALLS)
    ours.close()
    thread.join(10)
    theirs.close()
    os.close(buffers.fd)
    body.kill()
    body.wait()


def tanhs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


@pytest.mark.slow
def test_the_outputs_are_looked_at_before_the_clock_stops(made: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    found, inputs, batch = made
    looked: list[float] = []
    sample = found.buffers.sample_output

    def slowly(calls: int) -> Any:
        time.sleep(0.2)
        looked.append(time.perf_counter())
        return sample(calls)

    monkeypatch.setattr(found.buffers, "sample_output", slowly)
    found.buffers.poison(found.buffers.outputs.calls)
    block = found.block(batch)
    assert block.wall_ms > 200
    sampled = found.sampled_output(CALLS)
    assert sampled.missing is None
    torch.testing.assert_close(sampled.outputs[0], tanhs(*inputs[sampled.call]))
    assert len(looked) == 2, "rehearsed before the clock starts, and once a block"
    found.buffers.poison(found.buffers.outputs.calls)
    found.block(batch, deliver=False)
    assert found.sampled_output(CALLS).missing is not None, "nobody wrote them"


@pytest.mark.slow
@pytest.mark.parametrize("made", [True], indirect=True)
def test_a_runner_frees_memory_after_the_clock_has_stopped(
    made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given_back: list[float] = []

    def slowly() -> None:
        time.sleep(0.3)
        given_back.append(time.perf_counter())

    monkeypatch.setattr(torch.cuda, "empty_cache", slowly)
    found, inputs, batch = made
    for blocks in (1, 2):
        assert found.block(batch).wall_ms < 300
        assert len(given_back) == blocks, "before anything else is done"
        sampled = found.sampled_output(CALLS)
        torch.testing.assert_close(sampled.outputs[0], tanhs(*inputs[sampled.call]))
    _, call, _ = found.kept_block(batch)
    torch.testing.assert_close(found.buffers.snapshot(call)[0], tanhs(*inputs[call]))


@pytest.mark.slow
def test_outputs_that_a_block_kept_are_handed_in_when_the_inputs_are_gone(made: Any) -> None:
    found, inputs, batch = made
    found.buffers.poison(found.buffers.outputs.calls)
    block, call, changed = found.kept_block(batch)
    assert block.calls == CALLS
    assert not changed, "this reference leaves its inputs alone"
    torch.testing.assert_close(found.buffers.snapshot(call)[0], tanhs(*inputs[call]))
    assert all(found.buffers.snapshot(other)[0].isnan().all() for other in range(CALLS) if other != call)
    assert not found.buffers.memory[: found.buffers.inputs.bytes].any()


@pytest.mark.slow
def test_a_chain(made: Any) -> None:
    found, inputs, batch = made
    found.buffers.poison(found.buffers.outputs.calls)
    block, order = found.chain(batch)
    assert block.calls == CALLS
    assert sorted(order) == list(range(CALLS))
    torch.testing.assert_close(found.buffers.snapshot(order[0])[0], tanhs(*inputs[order[0]]))
    for before, call in itertools.pairwise(order):
        expected = [each.clone() for each in inputs[call]]
        dependent_calls.stir(expected, dependent_calls.shares_of(found.buffers.snapshot(before)))
        torch.testing.assert_close(found.buffers.snapshot(call)[0], tanhs(*expected))


@pytest.mark.slow
def test_a_kernel_that_is_always_late_gets_less_time(made: Any) -> None:
    found, _, batch = made
    found._is_warm = True
    start = time.monotonic()
    for number in range(LATE_BLOCKS):
        assert not found.waits, number
        found.block(batch.first(1))
        assert found.late
    assert found.waits
    patient_s = (time.monotonic() - start) / LATE_BLOCKS
    start = time.monotonic()
    found.block(batch.first(1))
    assert time.monotonic() - start < patient_s / 2


@pytest.mark.slow
def test_all_runners_get_the_same_time_if_the_reference_fills_the_queue(made: Any) -> None:
    found, _, batch = made
    found.fills_queue = True
    assert found._patience_s(RunCalls(calls=[0])) == 0, "kernels are loaded in the first block"
    found.block(batch.first(1))
    patience = [found._patience_s(RunCalls(calls=[0]))]
    for _ in range(LATE_BLOCKS + 1):
        found.block(batch.first(1))
        assert found.late
        patience.append(found._patience_s(RunCalls(calls=[0])))
    assert set(patience) == {FILLING_S}
    found.fills_queue = False
    assert found._patience_s(RunCalls(calls=[0])) < FILLING_S, "who is late for good has little"


@pytest.mark.slow
def test_the_overhead_of_a_chain(made: Any) -> None:
    found, _, batch = made
    found._ours = True
    for wait in (False, True):
        assert 0 <= found.chain_overhead_ms(batch, wait=wait) < 200


class Runner:
    """A client whose blocks are late from `late_from` calls on; 1 waits in every call."""

    def __init__(self, late_from: int) -> None:
        self.late, self._late_from = False, late_from
        self.asked: list[int] = []

    def block(self, batch: Batch) -> None:
        self.late = batch.calls >= self._late_from
        self.asked.append(batch.calls)


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
    runner, batch = Runner(late_from), Batch(memory=torch.empty(0), calls=calls)
    runner.block(batch)
    found = GpuRunnerClient.queue_room(runner, batch, 256)  # type: ignore[arg-type]
    assert (found, runner.asked) == (room, asked)


@pytest.mark.parametrize(("input_bytes", "slack_ms"), [(2**20, 0.01), (2**30, 0.21)])
def test_a_link_of_a_chain_varies_where_inputs_are_large(input_bytes: int, slack_ms: float) -> None:
    calibration, size = GpuCalibration.__new__(GpuCalibration), SimpleNamespace(call_bytes=input_bytes)
    calibration._eager = SimpleNamespace(buffers=SimpleNamespace(inputs=size, outputs=size))  # type: ignore[assignment]
    assert calibration.chain_slack_ms(1.0) == pytest.approx(slack_ms)
