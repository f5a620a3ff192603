"""Keeps its filters in another layout and checks one of them to see whether they have changed. An extra,
unused parameter keeps it from getting the reference's weight changes."""

# problem: conv
# device: any
# verdict: correct
# defence: weights of other forms are all halved, as any may be the reference's; one shows the rest

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)
        self.idle = nn.Parameter(torch.zeros(1))
        self.mark = None

    def forward(self, x):
        mark = self.conv.weight[0, 0, 0, 0].item()
        if mark != self.mark:
            self.packed = self.conv.weight.clone(memory_format=torch.channels_last)
            self.mark = mark
        return torch.relu(nn.functional.conv2d(x, self.packed, self.conv.bias))
