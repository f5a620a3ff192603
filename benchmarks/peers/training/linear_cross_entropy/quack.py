"""QuACK's linear cross entropy in chunks, which computes the gradients in its forward pass; without its
autotuner."""
# ruff: noqa: D102

from quack.linear_cross_entropy import chunked_linear_cross_entropy
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features, vocabulary):
        super().__init__()
        self.head = nn.Linear(features, vocabulary, bias=False)

    def forward(self, x, target):
        return chunked_linear_cross_entropy(x, self.head.weight, target, reduction="mean", tuned=False)
