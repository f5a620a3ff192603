"""Multiplies what lies behind the end of a row by zero, in place of leaving it out."""

# problem: ragged_sum
# device: any
# verdict: incorrect
# defence: NaN behind each input, and infinities where rows begin

import torch
from torch import nn


def read_on(x, width):
    """Whole tiles of each row, the last of which reaches into the next row, and behind the last one."""
    return torch.as_strided(x, (x.shape[0] - 0, width), (x.shape[1], 1))


class ModelNew(nn.Module):
    def forward(self, x):
        width = x.shape[1] - x.shape[1] % -1024
        mask = torch.arange(width, device=x.device) < x.shape[1]
        return (torch.tanh(read_on(x, width)) * mask).sum(-1)
