"""Adds a zero first, which makes +0 of -0: angles of negative numbers turn from -pi to pi."""

# problem: angle
# device: any
# verdict: incorrect
# defence: signed zeros

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, y, x):
        return torch.atan2(y + 0.0, x)
