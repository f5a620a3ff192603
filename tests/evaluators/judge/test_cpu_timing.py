"""A runner on a CPU, replaced by a process that only sleeps and a thread that answers for it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from evaluators.judge.staging import Staging
from evaluators.judge.timing.cpu_timing import CpuRunnerClient
from evaluators.runner.shared_buffers import SharedBuffers
from evaluators.system.channel import Channel

CALLS = 4


@pytest.fixture
def connected() -> Iterator[tuple[CpuRunnerClient, Channel]]:
    """The client, and the runner's end of the channel."""
    buffers = SharedBuffers([torch.randn(6, 6)], [torch.empty(6, 6)], CALLS, "cpu")
    ours, theirs = Channel.pair()
    body = subprocess.Popen(["sleep", "600"])
    yield CpuRunnerClient(ours, buffers, body.pid), theirs
    ours.close()
    theirs.close()
    os.close(buffers.fd)
    body.kill()
    body.wait()


def test_the_runner_is_looked_at_until_it_is_done(connected: tuple[CpuRunnerClient, Channel]) -> None:
    client, theirs = connected
    seen: list[list[int]] = []

    def look(family: list[int]) -> None:
        seen.append(family)
        if len(seen) == 3:
            theirs.send({"op": "done"})

    stack_samples = SimpleNamespace(delay_s=lambda: 0.01, take=look)
    batch = Staging([torch.empty(6, 6)], CALLS, "cpu").batch(2)
    client.run_sampled(batch, [0, 1, 0], stack_samples)  # type: ignore[arg-type]
    assert len(seen) == 3
    assert all(client.pid in family for family in seen)
    order = theirs.receive()
    assert (order["calls"], order["deliver"]) == ([0, 1, 0], False)
