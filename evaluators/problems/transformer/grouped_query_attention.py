"""Causal attention over a prompt, in which groups of query heads share a head of keys and values."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)


batch = 1
heads = 32
kv_heads = 8
length = 4096
head_size = 128


def get_inputs():
    q = torch.randn(batch, heads, length, head_size)
    k, v = (torch.randn(batch, kv_heads, length, head_size) for _ in range(2))
    return [q, k, v]


def get_init_inputs():
    return []


def get_cases():
    return [{}, {"sizes": {"batch": 4, "length": 1024}}]
