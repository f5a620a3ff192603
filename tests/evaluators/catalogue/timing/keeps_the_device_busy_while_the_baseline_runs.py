"""Queues some milliseconds of work on another stream at the end of every block. It continues while the
process is stopped and the baseline, or any overhead to be subtracted, is measured."""

# problem: tanhs
# device: cuda
# verdict: rejected|no_gain
# defence: the baseline's times are compared with those from before the kernel was loaded

import torch
from torch import nn

synchronize, streams = torch.cuda.synchronize, []


def disturb(*_):
    synchronize()
    if not streams:
        streams.append((torch.cuda.Stream(), torch.zeros(1 << 26, device="cuda")))
    stream, load = streams[0]
    with torch.cuda.stream(stream):
        for _ in range(100):
            load.add_(1.0)


torch.cuda.synchronize = disturb


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
