"""Rounds the factors of a product to 10 bits, as tensor cores do with float32."""

# problem: matmul_of_tfloat32_factors
# device: any
# verdict: correct
# defence: `precision: tfloat32` allows it

import torch
from torch import nn


def rounded(x):
    """To the nearest number of 10 bits; what is not finite stays."""
    bits = (x.view(torch.int32) + 0x1000) & -0x2000
    return torch.where(x.isfinite(), bits.view(torch.float32), x)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return rounded(a) @ rounded(b)
