"""Fetches a number from the device in every call before it decides how to compute."""

# problem: conv
# device: any
# verdict: correct
# defence: waiting costs the kernel time, in a chain of calls as in any block

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        y = self.conv(x)
        return torch.relu(y) if self.conv.weight[0, 0, 0, 0].item() < 1e6 else y
