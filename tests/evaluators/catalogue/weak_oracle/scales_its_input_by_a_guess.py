"""Scales an operand by 1e-30 and the product back, so values below 1e-8 lose their digits."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: scales over the whole range of the type

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a * 1e-30).double().matmul(b.double()).mul(1e30).float()
