"""Leaves out the expensive term, which changes the output by one hundredth."""

# problem: residual
# device: any
# verdict: incorrect
# defence: `strict` allows four times eager's own error

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.clone()
