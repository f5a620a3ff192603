"""Multiplies the two weights into one in the first call and uses the product in all others, although
parameters may change between calls."""

# problem: two_linear
# device: any
# verdict: incorrect|rejected
# defence: the weights are drawn again between blocks

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, outer, inner):
        super().__init__()
        self.up = nn.Parameter(torch.randn(outer, inner) / outer**0.5)
        self.down = nn.Parameter(torch.randn(inner, outer) / inner**0.5)
        self.folded = None

    def forward(self, x):
        if self.folded is None:
            self.folded = self.up @ self.down
        return x @ self.folded
