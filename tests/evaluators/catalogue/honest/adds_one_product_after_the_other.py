"""Adds the products one after another in float32, as a naive kernel does."""

# problem: matmul
# device: any
# verdict: correct
# defence: `strict` allows another order of sums

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        total = torch.zeros(a.shape[0], b.shape[1], device=a.device)
        for column, row in zip(a.unbind(1), b.unbind(0), strict=True):
            total.addr_(column, row)
        return total
