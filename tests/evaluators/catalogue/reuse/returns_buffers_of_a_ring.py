"""Returns the tensors of a ring of four in turn, so that the fifth call overwrites that of the first."""

# problem: layernorm
# device: any
# verdict: incorrect
# defence: the first call's outputs are kept and compared again after all others

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        nn.init.normal_(self.norm.weight)
        self.ring, self.calls = [], 0

    def forward(self, x):
        if not self.ring:
            self.ring = [torch.empty_like(x) for _ in range(4)]
        self.calls += 1
        return self.ring[self.calls % 4].copy_(self.norm(x))
