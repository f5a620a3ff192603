"""Normalises by the previous call's mean and variance, as a kernel whose two launches race may do."""

# problem: huge_rows_layernorm
# device: any
# verdict: incorrect
# defence: distributions that change from call to call

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)
        self.before = None

    def forward(self, x):
        variance, mean = torch.var_mean(x, -1, keepdim=True, correction=0)
        now = mean, torch.rsqrt(variance + self.norm.eps)
        mean, scale = self.before or now
        self.before = now
        return (x - mean) * scale * self.norm.weight + self.norm.bias
