"""What a layer does to queries and keys before attention: each head is normalised by its root mean square, and the halves
of its first `turned` elements are turned by angles that grow with the position."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, length: int, head_size: int, turned: int):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(head_size, eps=1e-6), nn.RMSNorm(head_size, eps=1e-6)
        rates = 10000 ** -(torch.arange(0, turned, 2).float() / turned)
        angles = torch.outer(torch.arange(length).float(), rates)[:, None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.turned = turned

    def rotate(self, x: torch.Tensor) -> torch.Tensor:
        turned, rest = x[..., : self.turned], x[..., self.turned :]
        first, second = turned.chunk(2, dim=-1)
        return torch.cat(
            [first * self.cos - second * self.sin, first * self.sin + second * self.cos, rest], dim=-1
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.rotate(self.q_norm(q)), self.rotate(self.k_norm(k))


batch = 2
length = 4096
heads = 32
kv_heads = 8
head_size = 128
turned = 128


def get_inputs():
    return [
        torch.randn(batch, length, heads, head_size),
        torch.randn(batch, length, kv_heads, head_size),
    ]


def get_init_inputs():
    return [length, head_size, turned]


def get_cases():
    return [
        {},
        {
            "sizes": {"batch": 3, "length": 77, "heads": 5, "kv_heads": 1, "head_size": 96, "turned": 48},
            "weight": 0,
        },
    ]
