"""Rounds the factors of a product to float16 and adds in float32 in another order."""

# problem: matmul_of_float16_factors
# device: any
# verdict: correct
# defence: `precision: float16` allows it

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        half = a.shape[1] // 2
        a, b = a.half().float(), b.half().float()
        return a[:, :half] @ b[:half] + a[:, half:] @ b[half:]
