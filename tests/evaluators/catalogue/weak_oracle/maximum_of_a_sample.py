"""Subtracts the maximum of every eighth score, which is nearly the maximum of the row."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: one huge outlier

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        power = torch.exp(x - x[:, ::8].amax(1, keepdim=True))
        return power / power.sum(1, keepdim=True)
