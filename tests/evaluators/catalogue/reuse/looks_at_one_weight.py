"""Keeps the product of its weights and checks one number of each to see whether they have changed."""

# problem: two_linear
# device: any
# verdict: incorrect
# defence: other weights, in some places only, before the timing and at unpredictable moments of it

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, outer, inner):
        super().__init__()
        self.up = nn.Parameter(torch.randn(outer, inner) / outer**0.5)
        self.down = nn.Parameter(torch.randn(inner, outer) / inner**0.5)
        self.mark = None

    def forward(self, x):
        mark = self.up[0, 0].item(), self.down[0, 0].item()
        if mark != self.mark:
            self.folded, self.mark = self.up @ self.down, mark
        return x @ self.folded
