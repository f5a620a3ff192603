"""Divides by the standard deviation without eps, so a constant row becomes NaN instead of the bias."""

# problem: layernorm
# device: any
# verdict: incorrect
# defence: constant rows

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        nn.init.normal_(self.norm.weight)

    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance) * self.norm.weight + self.norm.bias
