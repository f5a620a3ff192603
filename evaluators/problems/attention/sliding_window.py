"""Causal attention of grouped query heads in which each query sees only the last `window` keys, its own included."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, window: int):
        super().__init__()
        self.window = window

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        places = torch.arange(q.shape[2], device=q.device)
        back = places[:, None] - places[None, :]
        seen = (back >= 0) & (back < self.window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)


batch = 1
heads = 32
kv_heads = 8
length = 8192
head_size = 128
window = 1024


def get_inputs():
    q = torch.randn(batch, heads, length, head_size)
    k, v = (torch.randn(batch, kv_heads, length, head_size) for _ in range(2))
    return [q, k, v]


def get_init_inputs():
    return [window]


def get_cases():
    return [
        {},
        {"sizes": {"heads": 4, "kv_heads": 2, "length": 300, "head_size": 64, "window": 37}, "weight": 0},
    ]
