"""Rotates its input where it lies and returns it: whoever puts this into a model loses the input."""

# problem: rotary
# device: any
# verdict: incorrect
# defence: inputs are as they were after the call, unless the reference changes them

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        turned = first * sin + second * cos
        first.mul_(cos).sub_(second * sin)
        second.copy_(turned)
        return x
