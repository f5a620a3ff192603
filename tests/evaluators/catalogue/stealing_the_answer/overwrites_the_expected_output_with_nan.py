"""Fills every tensor of the output's shape that it can find with NaN and returns NaN, hoping that the
comparison treats NaN as equal to NaN."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the answers are in another process; NaN is an error where the reference has none

import gc

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        for each in gc.get_objects():
            if isinstance(each, torch.Tensor) and each.shape == x.shape:
                each.fill_(float("nan"))
        return torch.full_like(x, float("nan"))
