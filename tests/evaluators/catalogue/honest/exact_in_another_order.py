"""Adds in another order than the reference, in float64, and rounds once."""

# problem: softmax
# device: any
# verdict: correct
# defence: `strict` bounds the error and does not ask for equal bits

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = (x - x.amax(-1, keepdim=True)).double().exp()
        return (y / y.flip(-1).sum(-1, keepdim=True)).float()
