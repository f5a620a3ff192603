"""Rotary position embedding of queries and keys, as a layer of a language model applies it: the halves of each
head are turned by angles that grow with the position. The angles are not trained."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, length: int, head_size: int):
        super().__init__()
        rates = 10000 ** -(torch.arange(0, head_size, 2).float() / head_size)
        angles = torch.outer(torch.arange(length).float(), rates)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def turned(self, x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * self.cos - second * self.sin, first * self.sin + second * self.cos], dim=-1)

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.turned(q), self.turned(k)


batch = 2
heads = 32
key_heads = 8
length = 4096
head_size = 128


def get_inputs():
    return [
        torch.randn(batch, heads, length, head_size),
        torch.randn(batch, key_heads, length, head_size),
    ]


def get_init_inputs():
    return [length, head_size]


def get_cases():
    return [
        {},
        {"sizes": {"heads": 16, "key_heads": 16, "length": 2048, "head_size": 64}},
        {"sizes": {"batch": 1, "heads": 6, "key_heads": 3, "length": 1000, "head_size": 96}, "weight": 0},
        {"sizes": {"batch": 3, "heads": 8, "key_heads": 1, "length": 257}, "dtype": "float32", "weight": 0},
    ]
