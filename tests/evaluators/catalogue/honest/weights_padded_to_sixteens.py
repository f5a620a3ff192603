"""Keeps its weights padded with zeros to multiples of 16, in parameters that it defines itself."""

# problem: ragged_linear
# device: any
# verdict: correct
# defence: weight changes keep the padding of a kernel's weights

import torch
from torch import nn


def padded(count):
    return (count + 15) // 16 * 16


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        linear = nn.Linear(inner, outer)
        self.inner, self.outer = inner, outer
        self.weight = nn.Parameter(torch.zeros(padded(inner), padded(outer)))
        self.bias = nn.Parameter(torch.zeros(padded(outer)))
        with torch.no_grad():
            self.weight[:inner, :outer] = linear.weight.t()
            self.bias[:outer] = linear.bias

    def forward(self, x):
        x = nn.functional.pad(x, (0, self.weight.shape[0] - self.inner))
        return torch.relu(torch.addmm(self.bias, x, self.weight))[:, : self.outer].contiguous()
