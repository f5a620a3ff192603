"""Leaves out a bias that is zero in a new module. An extra, unused parameter keeps the kernel from getting
the reference's weight changes."""

# problem: layernorm
# device: any
# verdict: incorrect
# defence: where the forms of the weights differ, zeros change too

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        nn.init.normal_(self.norm.weight)
        self.idle = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return nn.functional.layer_norm(x, self.norm.normalized_shape, self.norm.weight)
