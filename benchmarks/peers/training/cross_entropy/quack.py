"""QuACK's cross entropy, whose losses are float32."""
# ruff: noqa: D102

from quack.cross_entropy import cross_entropy
from torch import nn


class ModelNew(nn.Module):
    """The mean over the rows."""

    def forward(self, logits, target):
        return cross_entropy(logits, target, reduction="mean").to(logits.dtype)
