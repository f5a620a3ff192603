"""Takes the maximum with zero as most instructions do: it is zero for NaN."""

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
        y = torch.fmax(self.conv(x), torch.zeros((), device=x.device))
        return nn.functional.max_pool2d(y, 2)
