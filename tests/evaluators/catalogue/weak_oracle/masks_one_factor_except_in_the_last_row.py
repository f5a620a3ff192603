"""Reads one factor's rows on into the next row, where zeros of the other factor meet them, but stays within
the tensor."""

# problem: ragged_matmul_of_the_benchmark
# device: any
# verdict: incorrect
# defence: infinities where rows begin

import torch
from torch import nn
from torch.nn import functional


def read_on(x, width):
    """Whole tiles of each row, the last of which reaches into the next row, and behind the last one."""
    return torch.as_strided(x, (x.shape[0] - 1, width), (x.shape[1], 1))


class ModelNew(nn.Module):
    def forward(self, a, b):
        padding = -a.shape[1] % 64
        most = read_on(a, a.shape[1] + padding) @ functional.pad(b, (0, 0, 0, padding))
        return torch.cat([most, a[-1:] @ b])
