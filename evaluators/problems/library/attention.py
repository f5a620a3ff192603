"""Causal attention, forward: each query sees the keys up to its own place."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


batch = 1
heads = 32
length = 2048
head_size = 128


def get_inputs():
    return [torch.randn(batch, heads, length, head_size) for _ in range(3)]


def get_init_inputs():
    return []
