"""Takes mean and variance from the first sixteenth of each row."""

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
        part = x[:, : x.shape[-1] // 16]
        variance, mean = torch.var_mean(part, -1, keepdim=True, correction=0)
        return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias
