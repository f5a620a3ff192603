"""QuACK's RMS norm."""
# ruff: noqa: D102

from quack.rmsnorm import rmsnorm_fwd
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x):
        return rmsnorm_fwd(x, self.norm.weight, eps=self.norm.eps)[0]
