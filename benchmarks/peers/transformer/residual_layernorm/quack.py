"""QuACK's layer norm, whose weight and bias are float32, with the addition before it as a call of its own."""
# ruff: noqa: D102

from quack.rmsnorm import layernorm_fwd
from torch import nn


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)
        self.wide, self.version = None, None

    def forward(self, x, residual):
        version = self.norm.weight._version, self.norm.bias._version
        if self.version != version:
            self.wide, self.version = (self.norm.weight.float(), self.norm.bias.float()), version
        residual = residual + x
        return layernorm_fwd(residual, *self.wide, eps=self.norm.eps), residual
