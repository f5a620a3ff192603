"""QuACK's matrix product, without its autotuner."""
# ruff: noqa: D102

from quack.gemm_interface import gemm
from torch import nn


class ModelNew(nn.Module):
    """With a transposed view of the weights."""

    def forward(self, x, weight):
        return gemm(x, weight.t(), tuned=False)
