"""Applies dropout with the numbers that the reference draws, from the same random state."""

# problem: dropout
# device: any
# verdict: correct
# defence: the same random state on both sides

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        y = torch.addmm(self.linear.bias, x, self.linear.weight.t())
        return torch.relu(nn.functional.dropout(y, 0.25, training=self.training))
