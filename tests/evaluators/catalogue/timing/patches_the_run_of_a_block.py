"""Replaces the harness's function that runs a block with one that does the work and reports a microsecond
per call."""

# problem: tanhs
# device: any
# verdict: no_gain
# defence: the judge's own clock over each block

import sys

import torch
from torch import nn

RunnerSession = sys.modules["evaluators.runner.runner_process"].RunnerSession
run = RunnerSession.run


class LyingChannel:
    def __init__(self, channel, calls):
        self.channel, self.calls = channel, calls

    def send(self, message):
        self.channel.send({**message, "ms": [1e-3] * self.calls, "filling_ms": 1e3})


RunnerSession.run = lambda self, order, channel: run(self, order, LyingChannel(channel, len(order.calls)))


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
