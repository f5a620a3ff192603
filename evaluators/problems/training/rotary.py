"""Rotary position embedding of a model that learns: the angles are computed once, and have no gradient."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, length: int, head_size: int):
        super().__init__()
        rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        turned = [first * self.cos - second * self.sin, first * self.sin + second * self.cos]
        return torch.cat(turned, dim=-1)


batch = 2
heads = 32
length = 2048
head_size = 128


def get_inputs():
    return [torch.randn(batch, heads, length, head_size)]


def get_init_inputs():
    return [length, head_size]
