"""Stores its outputs by the identity of the input object."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: every call has new inputs, in objects that repeat

import torch
from torch import nn

known = {}


class ModelNew(nn.Module):
    def forward(self, x, w):
        key = id(x)
        if key not in known:
            for _ in range(8):
                x = torch.tanh(x @ w)
            known[key] = x
        return known[key]
