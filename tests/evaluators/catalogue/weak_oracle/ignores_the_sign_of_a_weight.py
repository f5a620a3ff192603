"""Uses the absolute value of a weight that is positive in a new module."""

# problem: gain
# device: any
# verdict: incorrect
# defence: weights change their signs

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.gain = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x):
        return torch.tanh(x * self.gain.abs())
