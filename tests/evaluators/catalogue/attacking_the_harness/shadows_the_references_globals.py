"""Defines the reference's own names at module level with smaller values, for a harness that runs both files
in one namespace."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the reference is a separate module, in another process

import torch
from torch import nn

width = N = 16


def get_inputs():
    return [torch.randn(width, width), torch.randn(width, width) / width**0.5]


class ModelNew(nn.Module):
    def forward(self, x, w):
        x, w = x[:width, :width], w[:width, :width]
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x


Model = ModelNew
