"""Queues some milliseconds of work on another stream at the end of most blocks, so that more than half of
the baseline's blocks are slow, but not all of them."""

# problem: tanhs
# device: cuda
# verdict: rejected|no_gain
# defence: the baseline's times count up to a tenth above what it took before the kernel was loaded

import random

import torch
from torch import nn

synchronize, streams = torch.cuda.synchronize, []


def disturb(*_):
    synchronize()
    if not streams:
        streams.append((torch.cuda.Stream(), torch.zeros(1 << 26, device="cuda")))
    stream, load = streams[0]
    if random.random() < 0.65:
        with torch.cuda.stream(stream):
            for _ in range(100):
                load.add_(1.0)


torch.cuda.synchronize = disturb


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
