"""Liger's rotary embedding, which expects the heads after the positions in memory, and copies others."""
# ruff: noqa: D102

import torch
from liger_kernel.ops import LigerRopeFunction
from torch import nn


class ModelNew(nn.Module):
    """Cosines and sines twice as wide, as it takes them."""

    def __init__(self, length, head_size):
        super().__init__()
        rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)[None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, q, k):
        return LigerRopeFunction.apply(q, k, self.cos, self.sin)
