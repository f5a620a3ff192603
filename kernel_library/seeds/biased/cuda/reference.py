"""Attention that is not causal, with a bias for each pair of places that is added before the softmax, as for relative
positions."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


batch = 4
heads = 16
length = 2048
head_size = 64


def get_inputs():
    q, k, v = (torch.randn(batch, heads, length, head_size) for _ in range(3))
    return [q, k, v, torch.randn(1, heads, length, length)]


def get_init_inputs():
    return []


def get_cases():
    return [{}, {"sizes": {"batch": 2, "heads": 3, "length": 197, "head_size": 80}, "weight": 0}]
