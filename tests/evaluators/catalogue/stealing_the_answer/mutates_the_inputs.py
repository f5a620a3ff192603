"""Zeroes its inputs and returns zeros: right for a reference that is run on the same tensors afterwards."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the reference's inputs are drawn anew from the secret seed

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        x.zero_()
        w.zero_()
        return torch.zeros_like(x)
