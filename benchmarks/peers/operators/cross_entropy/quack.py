"""QuACK's cross entropy, whose losses are float32."""
# ruff: noqa: D102

from quack.cross_entropy import cross_entropy_fwd
from torch import nn


class ModelNew(nn.Module):
    """A loss for each row."""

    def forward(self, logits, target):
        return cross_entropy_fwd(logits, target).to(logits.dtype)
