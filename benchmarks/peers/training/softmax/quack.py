"""QuACK's softmax."""
# ruff: noqa: D102

from quack.softmax import softmax
from torch import nn


class ModelNew(nn.Module):
    """Over the last dimension."""

    def forward(self, x):
        return softmax(x)
