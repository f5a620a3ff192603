"""Liger's group norm, then PyTorch's SiLU in place."""
# ruff: noqa: D102

from liger_kernel.ops import LigerGroupNormFunction
from torch import nn
from torch.nn.functional import silu


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x):
        norm = self.norm
        found = LigerGroupNormFunction.apply(
            x, norm.weight, norm.bias, norm.num_channels, norm.num_groups, norm.eps
        )
        return silu(found, inplace=True).view(x.shape)
