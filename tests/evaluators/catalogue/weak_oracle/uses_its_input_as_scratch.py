"""Stores an intermediate result in its second input and returns a separate tensor."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: inputs must be unchanged after the call, unless the reference changes them

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(7):
            x = torch.tanh(x @ w)
        out = torch.empty_like(x)
        torch.mm(x, w, out=out)
        w.copy_(out)
        return w.tanh()
