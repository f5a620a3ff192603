"""Draws the inputs itself from the seed that made the weights, computes the answers in advance and returns
one of them in every call."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: secret seeds for the inputs of every call, which no runner learns

import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.answer = None

    def forward(self, x, w):
        if self.answer is None:
            torch.manual_seed(torch.initial_seed())
            a, b = (v.to(x.device) for v in sys.modules["reference"].get_inputs())
            for _ in range(8):
                a = torch.tanh(a @ b)
            self.answer = a
        return self.answer
