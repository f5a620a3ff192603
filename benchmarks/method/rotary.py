"""Rotary position embedding: the halves of each head are turned by angles that grow with the position."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, first * sin + second * cos], dim=-1)


batch = 1
heads = 8
length = 512
head_size = 128


def get_inputs():
    rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
    angles = torch.outer(torch.arange(length).float(), rates)
    return [torch.randn(batch, heads, length, head_size), angles.cos(), angles.sin()]


def get_init_inputs():
    return []
