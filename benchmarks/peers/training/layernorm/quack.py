"""QuACK's layer norm, whose weight and bias are float32."""
# ruff: noqa: D102

import torch
from quack.rmsnorm import layernorm_bwd, layernorm_fwd
from torch import nn


class LayerNorm(torch.autograd.Function):
    """QuACK has the two passes, and no function for autograd."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        wide = weight.float()
        out, rstd, mean = layernorm_fwd(x, wide, bias.float(), eps, True, True)
        ctx.save_for_backward(x, wide, rstd, mean)
        ctx.dtype = weight.dtype
        return out

    @staticmethod
    def backward(ctx, gradient):
        x, wide, rstd, mean = ctx.saved_tensors
        dx, dweight, dbias = layernorm_bwd(x, wide, gradient, rstd, mean)
        return dx, dweight.to(ctx.dtype), dbias.to(ctx.dtype), None


class ModelNew(nn.Module):
    """With the problem's weights."""

    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        return LayerNorm.apply(x, self.norm.weight, self.norm.bias, self.norm.eps)
