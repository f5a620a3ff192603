"""One step of decoding: each sequence's new query attends to the keys and values in its cache, which is filled to
a length of its own."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(
        self, q: torch.Tensor, k_cache: torch.Tensor, v_cache: torch.Tensor, lengths: torch.Tensor
    ) -> torch.Tensor:
        places = torch.arange(k_cache.shape[2], device=q.device)
        filled = (places < lengths[:, None])[:, None, None]
        return F.scaled_dot_product_attention(q, k_cache, v_cache, attn_mask=filled, enable_gqa=True)


batch = 16
heads = 32
kv_heads = 8
capacity = 8192
head_size = 128


def get_inputs():
    q = torch.randn(batch, heads, 1, head_size)
    k_cache, v_cache = (torch.randn(batch, kv_heads, capacity, head_size) for _ in range(2))
    return [q, k_cache, v_cache, torch.randint(1, capacity + 1, (batch,))]


def get_init_inputs():
    return []


def get_cases():
    return [{}, {"sizes": {"batch": 1, "capacity": 32768}}]
