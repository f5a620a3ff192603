"""One step of decoding over a paged cache: the keys and values of a sequence are in pages of `page` tokens anywhere in the
cache, in the order of its row of the page table."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(
        self,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        batch, _, head_size = q.shape
        k, v = (
            pages[table].reshape(batch, -1, pages.shape[2], head_size).transpose(1, 2)
            for pages in (k_pages, v_pages)
        )
        places = torch.arange(k.shape[2], device=q.device)
        filled = (places < lengths[:, None])[:, None, None]
        found = F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=filled, enable_gqa=True)
        return found[:, :, 0]


batch = 32
heads = 32
kv_heads = 8
head_size = 128
page = 16
pages_each = 256


def get_inputs():
    q = torch.randn(batch, heads, head_size)
    k_pages, v_pages = (torch.randn(batch * pages_each, page, kv_heads, head_size) for _ in range(2))
    table = torch.randperm(batch * pages_each).reshape(batch, pages_each)
    return [q, k_pages, v_pages, table, torch.randint(1, page * pages_each + 1, (batch,))]


def get_init_inputs():
    return []


def get_cases():
    return [
        {},
        {"sizes": {"batch": 3, "heads": 6, "kv_heads": 2, "head_size": 64, "pages_each": 7}, "weight": 0},
    ]
