"""Takes maxima that are NaN where one of the numbers is."""

# problem: pooled_conv
# device: any
# verdict: correct
# defence: it does what PyTorch does

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        y = self.conv(x)
        y = torch.where(y <= 0, 0.0, y)
        rows = torch.maximum(y[..., ::2, :], y[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])
