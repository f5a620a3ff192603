"""Waits for the GPU at the end of every call, as launchers in C++ often do."""

# problem: conv
# device: cuda
# verdict: correct
# defence: waiting costs the kernel time, in a chain of calls as in any block

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        torch.cuda.synchronize()
        return y
