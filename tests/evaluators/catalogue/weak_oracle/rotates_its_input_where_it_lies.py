"""Rotates its input in place and returns it, so a model that uses this kernel loses its input."""

# problem: rotary
# device: any
# verdict: incorrect
# defence: inputs must be unchanged after the call, unless the reference changes them

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, cos, sin):
        first, second = x.chunk(2, dim=-1)
        turned = first * sin + second * cos
        first.mul_(cos).sub_(second * sin)
        second.copy_(turned)
        return x
