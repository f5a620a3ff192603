"""The int8 product that PyTorch has for decoding."""
# ruff: noqa: D102

import torch
from torch import nn


class ModelNew(nn.Module):
    """A scale for each row of weights."""

    def forward(self, x, weight, scales):
        return torch.ops.aten._weight_int8pack_mm(x, weight, scales)
