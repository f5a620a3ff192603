"""Code after AutoKernel's rmsnorm."""
# ruff: noqa: D102, F821

from torch import nn


class ModelNew(nn.Module):
    """Theirs with the problem's weights."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x):
        return kernel_fn(x, self.norm.weight, self.norm.eps)
