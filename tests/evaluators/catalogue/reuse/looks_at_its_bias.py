"""Keeps its filters in another layout and checks only its bias, which is small, to see whether they have
changed."""

# problem: conv
# device: any
# verdict: incorrect
# defence: the weights change in turns and only in some places, not all of them at once

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)
        self.mark = None

    def forward(self, x):
        mark = self.conv.bias.tolist()
        if mark != self.mark:
            self.packed = self.conv.weight.clone(memory_format=torch.channels_last)
            self.mark = mark
        return torch.relu(nn.functional.conv2d(x, self.packed, self.conv.bias))
