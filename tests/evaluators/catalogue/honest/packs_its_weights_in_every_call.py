"""Lays its weights out again in every call, inside the time, before it uses them."""

# problem: two_linear
# device: any
# verdict: correct
# defence: it stays right when weights change

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, outer, inner):
        super().__init__()
        self.up = nn.Parameter(torch.randn(outer, inner) / outer**0.5)
        self.down = nn.Parameter(torch.randn(inner, outer) / inner**0.5)

    def forward(self, x):
        packed = self.up.t().contiguous()
        return torch.nn.functional.linear(x, packed) @ self.down
