"""Accumulates in float16, 64 products at a time, where the problem allows float16 only for the factors."""

# problem: matmul_of_float16_factors
# device: any
# verdict: incorrect
# defence: a problem that allows lower precision allows it for the factors only

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        total = None
        for left, right in zip(a.half().split(64, 1), b.half().split(64, 0), strict=True):
            part = (left.float() @ right.float()).half()
            total = part if total is None else total + part
        return total.float()
