"""Writes the output into its input's memory, as an in-place kernel does, where the reference leaves the
input alone."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: inputs must be unchanged after the call, unless the reference changes them

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        y = x
        for _ in range(8):
            y = torch.mm(y, w).tanh_()
        return x.copy_(y)
