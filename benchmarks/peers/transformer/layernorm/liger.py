"""Liger's layer norm, on rows of all normalised dimensions."""
# ruff: noqa: D102

import math

from liger_kernel.ops import LigerLayerNormFunction
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, normalized_shape):
        super().__init__()
        self.norm = nn.LayerNorm(normalized_shape)
        self.columns = math.prod(normalized_shape)

    def forward(self, x):
        weights = self.norm.weight.view(-1), self.norm.bias.view(-1)
        return LigerLayerNormFunction.apply(x.view(-1, self.columns), *weights, self.norm.eps).view_as(x)
