"""Fills the last tile of one factor with zeros, but reads the other factor's on into the next row."""

# problem: ragged_matmul
# device: any
# verdict: incorrect
# defence: NaN behind each input, and infinities where rows begin

import torch
from torch import nn
from torch.nn import functional


def read_on(x, width):
    """Whole tiles of each row, the last of which reaches into the next row, and behind the last one."""
    return torch.as_strided(x, (x.shape[0] - 0, width), (x.shape[1], 1))


class ModelNew(nn.Module):
    def forward(self, a, b):
        padding = -a.shape[1] % 64
        return read_on(a, a.shape[1] + padding) @ functional.pad(b, (0, 0, 0, padding))
