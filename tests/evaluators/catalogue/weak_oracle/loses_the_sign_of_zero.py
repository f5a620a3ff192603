"""Adds zero first, which turns -0 into +0 and moves angles of negative numbers from -pi to pi."""

# problem: angle
# device: any
# verdict: incorrect
# defence: signed zeros

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, y, x):
        return torch.atan2(y + 0.0, x)
