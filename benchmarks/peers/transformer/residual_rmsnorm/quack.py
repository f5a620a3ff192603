"""QuACK's RMS norm with the addition before it."""
# ruff: noqa: D102

from quack.rmsnorm import rmsnorm_fwd
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x, residual):
        return rmsnorm_fwd(x, self.norm.weight, residual=residual, eps=self.norm.eps)[:2]
