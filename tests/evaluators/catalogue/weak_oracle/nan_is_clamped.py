"""Clamps by comparisons that are false for NaN."""

# problem: clamp
# device: any
# verdict: incorrect
# defence: NaN among the inputs

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        one = torch.ones((), device=x.device)
        return torch.fmin(torch.fmax(x, -one), one)
