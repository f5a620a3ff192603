"""Leaves out a dropout that the reference applies."""

# problem: dropout
# device: any
# verdict: incorrect
# defence: the same random state on both sides

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return torch.relu(self.linear(x))
