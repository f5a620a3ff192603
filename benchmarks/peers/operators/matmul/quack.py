"""QuACK's matrix product, without its autotuner."""
# ruff: noqa: D102

from quack.gemm_interface import gemm
from torch import nn


class ModelNew(nn.Module):
    """Of two matrices."""

    def forward(self, a, b):
        return gemm(a, b, tuned=False)
