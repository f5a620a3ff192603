"""Multiplies the inputs of all steps at once, before the recurrence, which starts from zeros."""

# problem: recurrence
# device: any
# verdict: correct
# defence: the reference starts from zeros in float64 too

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Parameter(torch.randn(width, width) / width**0.5)
        self.outer = nn.Parameter(torch.randn(width, width) / width**0.5)

    def forward(self, x):
        given = (x @ self.outer).unbind(1)
        state = torch.tanh(given[0])
        for each in given[1:]:
            state = torch.tanh(torch.addmm(each, state, self.inner))
        return state
