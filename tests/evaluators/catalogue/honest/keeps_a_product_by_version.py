"""Keeps the product of its weights for as long as torch's version counter says that nothing has written to
them."""

# problem: two_linear
# device: any
# verdict: correct
# defence: it stays right for any change of the weights

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, outer, inner):
        super().__init__()
        self.up = nn.Parameter(torch.randn(outer, inner) / outer**0.5)
        self.down = nn.Parameter(torch.randn(inner, outer) / inner**0.5)
        self.versions = None

    def forward(self, x):
        versions = self.up._version, self.down._version
        if versions != self.versions:
            self.folded, self.versions = self.up @ self.down, versions
        return x @ self.folded
