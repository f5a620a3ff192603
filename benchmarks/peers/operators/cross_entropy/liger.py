"""Liger's cross entropy. It would overwrite logits that need a gradient; these do not."""
# ruff: noqa: D102

from liger_kernel.ops.cross_entropy import cross_entropy_forward
from torch import nn


class ModelNew(nn.Module):
    """A loss for each row."""

    def forward(self, logits, target):
        return cross_entropy_forward(logits, target, None, -100, 0.0, 0.0, "none", None, False)[0]
