"""PyTorch's attention with its memory-efficient kernel."""
# ruff: noqa: D102

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention


class ModelNew(nn.Module):
    """Groups of query heads as rows of one head, since there is one query only."""

    def forward(self, q, k_cache, v_cache, lengths):
        rows = q.view(q.shape[0], k_cache.shape[1], -1, q.shape[3])
        places = torch.arange(k_cache.shape[2], device=q.device)
        filled = (places < lengths[:, None])[:, None, None].expand(-1, -1, rows.shape[2], -1)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return scaled_dot_product_attention(rows, k_cache, v_cache, attn_mask=filled).reshape(q.shape)
