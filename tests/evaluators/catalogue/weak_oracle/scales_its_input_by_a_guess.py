"""Scales an operand by 1e-30 and the product back: what is below 1e-8 loses its digits."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: scales over the type's range

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a * 1e-30).double().matmul(b.double()).mul(1e30).float()
