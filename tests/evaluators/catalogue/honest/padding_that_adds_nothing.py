"""Adds up squares over rows padded with zeros, packed weights included. The zeros have to stay zeros."""

# problem: energy
# device: any
# verdict: correct
# defence: weight changes keep the padding of a kernel's weights

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        gain, bias = torch.randn(columns), torch.randn(columns)
        self.padding = -columns % 1024
        self.packed = nn.Parameter(nn.functional.pad(torch.stack([gain, bias]), (0, self.padding)))

    def forward(self, x):
        gain, bias = self.packed
        return (nn.functional.pad(x, (0, self.padding)) * gain + bias).square().sum(-1)
