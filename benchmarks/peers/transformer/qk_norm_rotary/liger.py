"""Liger's RMS norm for queries and keys, and its rotary embedding."""
# ruff: noqa: D102

import torch
from liger_kernel.ops import LigerRMSNormFunction, LigerRopeFunction
from torch import nn


class ModelNew(nn.Module):
    """Cosines and sines twice as wide, as it takes them."""

    def __init__(self, length, head_size, turned):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(head_size, eps=1e-6), nn.RMSNorm(head_size, eps=1e-6)
        rates = 10000 ** -(torch.arange(0, turned, 2).float() / turned)
        angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)[None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, q, k):
        q, k = (
            LigerRMSNormFunction.apply(each, norm.weight, norm.eps, 0.0, "llama", False).transpose(1, 2)
            for each, norm in ((q, self.q_norm), (k, self.k_norm))
        )
        turned = LigerRopeFunction.apply(q, k, self.cos, self.sin)
        return tuple(each.transpose(1, 2) for each in turned)
