"""QuACK's rotary embedding, which expects the heads after the positions."""
# ruff: noqa: D102

import torch
from quack.rotary import apply_rotary_emb
from torch import nn


class ModelNew(nn.Module):
    """The heads are moved by strides, in and out."""

    def __init__(self, length, head_size):
        super().__init__()
        rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x):
        return apply_rotary_emb(x.transpose(1, 2), self.cos, self.sin).transpose(1, 2).contiguous()

    def forward(self, q, k):
        return self.turned(q), self.turned(k)
