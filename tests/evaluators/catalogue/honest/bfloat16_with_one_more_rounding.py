"""Adds in float32 and rounds to bfloat16 twice: once halfway, once at the end."""

# problem: matmul_bfloat16
# device: any
# verdict: correct
# defence: `strict` allows the cost of one more rounding, in every type

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        middle = a.shape[1] // 2
        first = (a[:, :middle].float() @ b[:middle].float()).bfloat16()
        return (first.float() + a[:, middle:].float() @ b[middle:].float()).bfloat16()
