"""Computes causal attention by its formula: zero times an infinite value is NaN there, where a fused kernel
leaves masked keys out."""

# problem: causal_attention
# device: any
# verdict: correct
# defence: the results of infinities in products are left to the kernel

import math

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        later = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool, device=q.device).triu(1)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(later, -torch.inf)
        return torch.softmax(scores, -1) @ v
