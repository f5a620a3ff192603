"""Keeps the product of its weights for as long as torch's own count says that nobody has written to them."""

# problem: two_linear
# device: any
# verdict: correct
# defence: it is right whatever weights change

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
