"""Liger's RMS norm with the addition before it."""
# ruff: noqa: D102

from liger_kernel.ops import LigerFusedAddRMSNormFunction
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x, residual):
        return LigerFusedAddRMSNormFunction.apply(x, residual, self.norm.weight, self.norm.eps)
