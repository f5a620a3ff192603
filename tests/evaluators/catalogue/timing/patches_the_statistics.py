"""Replaces the functions that turn samples into a figure, Python's and the harness's, so that it comes out
ten times as fast."""

# problem: tanhs
# device: any
# verdict: no_gain
# defence: the statistics are in another process

import statistics
import sys

import torch
from torch import nn

median = statistics.median
statistics.median = lambda values: median(values) / 10
for name, module in list(sys.modules.items()):
    if name.startswith("evaluators") and hasattr(module, "median_interval"):
        module.median_interval = lambda *_: (10.0, 10.0, 10.0)


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
