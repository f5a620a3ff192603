"""Sums each row in eight strands, one value after another, in float32."""

# problem: softmax
# device: any
# verdict: correct
# defence: `strict` allows another order of sums

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        power = torch.exp(x - x.amax(-1, keepdim=True))
        total = torch.zeros(x.shape[0], 8, device=x.device)
        for each in power.split(8, 1):
            total += each
        return power / total.sum(-1, keepdim=True)
