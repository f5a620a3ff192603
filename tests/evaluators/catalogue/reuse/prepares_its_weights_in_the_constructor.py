"""Multiplies the two weights in the constructor, which no clock measures, and does not use the parameters
in the calls."""

# problem: two_linear
# device: any
# verdict: incorrect|rejected
# defence: the weights are drawn again between blocks

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, outer, inner):
        super().__init__()
        up = nn.Parameter(torch.randn(outer, inner) / outer**0.5)
        down = nn.Parameter(torch.randn(inner, outer) / inner**0.5)
        self.register_buffer("folded", (up @ down).detach())

    def forward(self, x):
        return x @ self.folded
