"""Takes the variance as the mean of squares less the square of the mean, in float32: nothing is left of it
where the mean is far from zero."""

# problem: layernorm
# device: any
# verdict: incorrect
# defence: rows that are constant, or far from zero

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = (x * x).mean(-1, keepdim=True) - mean * mean
        return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
