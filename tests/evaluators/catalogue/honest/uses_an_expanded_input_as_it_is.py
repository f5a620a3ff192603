"""Multiplies with one column of an expanded operand and shows the product for all, in memory of its own."""

# problem: expanded_matmul
# device: any
# verdict: correct
# defence: what the strides of every draw say may be used

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        if b.stride(1) == 0:
            return (a @ b[:, :1]).expand(-1, b.shape[1]).contiguous()
        return a @ b
