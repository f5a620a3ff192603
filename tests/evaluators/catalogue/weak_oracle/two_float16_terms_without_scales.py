"""Multiplies float32 numbers as sums of two unscaled float16 terms, which are wrong below 1e-3 and infinite
from 65,520."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: scales over the whole range of the type

from torch import nn


def terms(x):
    first = x.half().float()
    return first, (x - first).half().float()


class ModelNew(nn.Module):
    def forward(self, a, b):
        (a0, a1), (b0, b1) = terms(a), terms(b)
        return a1 @ b0 + a0 @ b1 + a0 @ b0
