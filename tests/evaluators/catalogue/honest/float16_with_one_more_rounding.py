"""Adds in float32 and rounds twice to float16: once halfway, once at the end."""

# problem: matmul_float16
# device: any
# verdict: correct
# defence: `strict` allows what one more rounding costs, in every type

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        middle = a.shape[1] // 2
        first = (a[:, :middle].float() @ b[:middle].float()).half()
        return (first.float() + a[:, middle:].float() @ b[middle:].float()).half()
