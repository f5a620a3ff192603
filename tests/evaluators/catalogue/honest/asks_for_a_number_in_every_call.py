"""Fetches a number from the device before it decides how to compute, in every call."""

# problem: conv
# device: any
# verdict: correct
# defence: what a kernel waits for costs it time; it does so in a chain of calls as in any block

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        y = self.conv(x)
        return torch.relu(y) if self.conv.weight[0, 0, 0, 0].item() < 1e6 else y
