"""Multiplies float32 as sums of two float16 terms that are not scaled: wrong below 1e-3, infinite
from 65,520."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: scales over the type's range

from torch import nn


def terms(x):
    first = x.half().float()
    return first, (x - first).half().float()


class ModelNew(nn.Module):
    def forward(self, a, b):
        (a0, a1), (b0, b1) = terms(a), terms(b)
        return a1 @ b0 + a0 @ b1 + a0 @ b0
