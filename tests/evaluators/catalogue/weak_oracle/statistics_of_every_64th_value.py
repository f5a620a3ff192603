"""Estimates mean and variance from every 64th value of each row."""

# problem: huge_rows_layernorm
# device: any
# verdict: incorrect
# defence: inputs of other distributions decide, under every tolerance

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x):
        variance, mean = torch.var_mean(x[:, ::64], -1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
