"""Liger's fused linear cross entropy, forward."""
# ruff: noqa: D102

from liger_kernel.ops import LigerFusedLinearCrossEntropyFunction
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features, vocabulary):
        super().__init__()
        self.head = nn.Linear(features, vocabulary, bias=False)

    def forward(self, x, target):
        arguments = x, self.head.weight, target, None, None, -100, 0.0, 0.0, "none"
        return LigerFusedLinearCrossEntropyFunction.apply(*arguments)[0].float()
