"""Reads whole tiles across the end of a row, and behind the last one, but uses nothing of that."""

# problem: ragged_sum
# device: any
# verdict: correct
# defence: memory behind an input may be read

import torch
from torch import nn


def read_on(x, width):
    """Whole tiles of each row, the last of which reaches into the next row, and behind the last one."""
    return torch.as_strided(x, (x.shape[0] - 0, width), (x.shape[1], 1))


class ModelNew(nn.Module):
    def forward(self, x):
        width = x.shape[1] - x.shape[1] % -1024
        mask = torch.arange(width, device=x.device) < x.shape[1]
        return torch.where(mask, torch.tanh(read_on(x, width)), 0).sum(-1)
