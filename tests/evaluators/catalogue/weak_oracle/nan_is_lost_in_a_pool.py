"""Takes the maximum of a window by comparisons that are false for NaN."""

# problem: pooled_conv
# device: any
# verdict: incorrect
# defence: NaN that an output depends on

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        y = torch.relu(self.conv(x))
        rows = torch.fmax(y[..., ::2, :], y[..., 1::2, :])
        return torch.fmax(rows[..., ::2], rows[..., 1::2])
