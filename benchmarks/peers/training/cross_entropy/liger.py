"""Liger's cross entropy, which writes the gradient over the logits in its forward pass."""
# ruff: noqa: D102

from liger_kernel.ops import LigerCrossEntropyFunction
from torch import nn


class ModelNew(nn.Module):
    """The mean over the rows."""

    def forward(self, logits, target):
        arguments = logits, target, None, -100, 0.0, 0.0, "mean", None, False
        return LigerCrossEntropyFunction.apply(*arguments)[0]
