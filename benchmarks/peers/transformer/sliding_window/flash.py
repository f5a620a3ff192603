"""PyTorch's FlashAttention 2, which skips what lies outside the window."""
# ruff: noqa: D102

import torch
from torch import nn


class ModelNew(nn.Module):
    """Causal: a query sees itself and what comes before it in the window."""

    def __init__(self, window):
        super().__init__()
        self.window = window

    def forward(self, q, k, v):
        length = q.shape[2]
        rows = (each.transpose(1, 2) for each in (q, k, v))
        found = torch.ops.aten._flash_attention_forward(
            *rows,
            *(None, None, length, length, 0.0, True, False),
            window_size_left=self.window - 1,
            window_size_right=0,
        )
        return found[0].transpose(1, 2)
