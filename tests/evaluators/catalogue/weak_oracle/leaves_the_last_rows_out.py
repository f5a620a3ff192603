"""Computes all rows except the last two, which a check of a few samples would probably miss."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: every element is compared

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.full_like(x, 1 / x.shape[-1])
        torch.softmax(x[:-2], dim=-1, out=y[:-2])
        return y
