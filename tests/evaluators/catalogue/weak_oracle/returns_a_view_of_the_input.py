"""Returns its input, which has the right shape and dtype and numbers of nearly the right size."""

# problem: residual
# device: any
# verdict: incorrect
# defence: `strict` allows four times eager's own error

from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a.view(a.shape)
