"""Causal attention over sequences of different lengths that are packed one after another, without padding: sequence i is at
the places from starts[i] to starts[i + 1]."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, starts: torch.Tensor
    ) -> torch.Tensor:
        places = torch.arange(q.shape[0], device=q.device)
        sequence = torch.searchsorted(starts, places, right=True)
        seen = (sequence[:, None] == sequence[None, :]) & (places[:, None] >= places[None, :])
        heads_first = (each.transpose(0, 1)[None] for each in (q, k, v))
        found = F.scaled_dot_product_attention(*heads_first, attn_mask=seen, enable_gqa=True)
        return found[0].transpose(0, 1)


sequences = 16
tokens = 8192
heads = 16
kv_heads = 4
head_size = 128


def get_inputs():
    q = torch.randn(tokens, heads, head_size)
    k, v = (torch.randn(tokens, kv_heads, head_size) for _ in range(2))
    inner = torch.randperm(tokens - 1)[: sequences - 1] + 1
    starts = torch.cat([torch.tensor([0]), inner.sort().values, torch.tensor([tokens])])
    return [q, k, v, starts]


def get_init_inputs():
    return []


def get_cases():
    return [
        {},
        {"sizes": {"sequences": 5, "tokens": 301, "heads": 6, "kv_heads": 3, "head_size": 64}, "weight": 0},
    ]
