"""Accumulates in float16, 16 products at a time, where eager accumulates in float32."""

# problem: matmul_float16
# device: any
# verdict: incorrect
# defence: `strict` allows the cost of one more rounding, in every type

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        total = None
        for left, right in zip(a.split(16, 1), b.split(16, 0), strict=True):
            part = (left.float() @ right.float()).half()
            total = part if total is None else total + part
        return total
