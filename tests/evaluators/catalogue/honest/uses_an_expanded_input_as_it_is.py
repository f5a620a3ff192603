"""Multiplies by one column of an expanded operand and repeats the product for all columns, in separate
memory."""

# problem: expanded_matmul
# device: any
# verdict: correct
# defence: a kernel may use anything that the strides of every draw show

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        if b.stride(1) == 0:
            return (a @ b[:, :1]).expand(-1, b.shape[1]).contiguous()
        return a @ b
