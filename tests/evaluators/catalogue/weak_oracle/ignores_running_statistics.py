"""Leaves out a batch norm's running mean and variance, which are zeros and ones in a new module."""

# problem: batch_norm
# device: any
# verdict: incorrect
# defence: a check with other weights and buffers

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)
        self.eval()

    def forward(self, x):
        norm = self.norm
        return torch.relu(x / (1 + norm.eps) ** 0.5 * norm.weight[:, None, None] + norm.bias[:, None, None])
