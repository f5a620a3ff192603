"""Stores its outputs by the address of the input."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: every call has new inputs, at addresses that repeat

import torch
from torch import nn

known = {}


class ModelNew(nn.Module):
    def forward(self, x, w):
        key = x.data_ptr()
        if key not in known:
            for _ in range(8):
                x = torch.tanh(x @ w)
            known[key] = x
        return known[key]
