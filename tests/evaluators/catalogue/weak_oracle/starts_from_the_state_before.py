"""Starts a recurrence from the last state of the previous call instead of zeros."""

# problem: recurrence
# device: any
# verdict: incorrect
# defence: every call has new inputs

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.outer = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.state = None

    def forward(self, x):
        state = x.new_zeros(x.shape[0], x.shape[2]) if self.state is None else self.state
        for step in range(x.shape[1]):
            state = torch.tanh(x[:, step] @ self.outer + state @ self.inner)
        self.state = state
        return state
