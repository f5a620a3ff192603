"""Keeps a running maximum that starts at -inf, so a row whose first scores are masked with -inf becomes
NaN."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: masked inputs (-inf)

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        peak = x.new_full((x.shape[0], 1), float("-inf"))
        total = torch.zeros_like(peak)
        for block in x.split(1024, 1):
            higher = torch.maximum(peak, block.amax(1, keepdim=True))
            total = total * torch.exp(peak - higher) + torch.exp(block - higher).sum(1, keepdim=True)
            peak = higher
        return torch.exp(x - peak) / total
