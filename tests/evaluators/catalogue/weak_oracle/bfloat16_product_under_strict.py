"""Multiplies in bfloat16 where the task is in float32."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: `strict` allows four times eager's own error

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return (a.bfloat16() @ b.bfloat16()).float()
