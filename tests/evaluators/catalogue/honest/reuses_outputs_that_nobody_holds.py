"""Keeps the outputs of its calls and writes to one of them again once the caller has dropped it."""

# problem: softmax
# device: any
# verdict: correct
# defence: outputs that a caller keeps stay as they are

import sys

import torch
from torch import nn

HERE = 3
"""References to an output that nobody else holds: in the list, in the loop, and in the call that counts."""


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.outputs = []

    def new_output(self, x):
        for each in self.outputs:
            if sys.getrefcount(each) <= HERE:
                return each
        self.outputs.append(torch.empty_like(x))
        return self.outputs[-1]

    def forward(self, x):
        return torch.softmax(x, dim=-1, out=self.new_output(x))
