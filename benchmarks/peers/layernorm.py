"""Code after AutoKernel's layernorm."""
# ruff: noqa: D102, F821

from torch import nn


class ModelNew(nn.Module):
    """What is normalised together becomes a row, as theirs wants it."""

    def __init__(self, normalized_shape):
        super().__init__()
        self.norm = nn.LayerNorm(normalized_shape)

    def forward(self, x):
        weight, bias = self.norm.weight.view(-1), self.norm.bias.view(-1)
        return kernel_fn(x.view(-1, weight.numel()), weight, bias, self.norm.eps).view(x.shape)
