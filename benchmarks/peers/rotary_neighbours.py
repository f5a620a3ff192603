"""Rotary embedding that rotates neighbouring elements, not halves; sizes and angles as in library/rotary."""
# ruff: noqa: D101, D102, D103

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        first, second = x[..., ::2], x[..., 1::2]
        turned = [first * cos - second * sin, first * sin + second * cos]
        return torch.stack(turned, dim=-1).flatten(-2)


batch = 2
heads = 32
length = 2048
head_size = 128


def get_inputs():
    rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
    angles = torch.outer(torch.arange(length).float(), rates)
    return [torch.randn(batch, heads, length, head_size), angles.cos(), angles.sin()]


def get_init_inputs():
    return []
