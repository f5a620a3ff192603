"""Expects the inputs to repeat after four calls and answers from a ring of stored outputs."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: every call has new inputs

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.ring, self.calls = [], 0

    def forward(self, x, w):
        self.calls += 1
        if len(self.ring) == 4:
            return self.ring[self.calls % 4]
        for _ in range(8):
            x = torch.tanh(x @ w)
        self.ring.append(x)
        return x
