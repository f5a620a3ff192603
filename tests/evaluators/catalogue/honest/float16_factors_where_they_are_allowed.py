"""Rounds the factors of a convolution to float16 and adds in float32."""

# problem: conv_of_float16_factors
# device: any
# verdict: correct
# defence: `precision: float16` allows it

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        weight = self.conv.weight.half().float()
        return torch.relu(nn.functional.conv2d(x.half().float(), weight, self.conv.bias))
