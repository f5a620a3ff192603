"""Adds products of bytes in pairs with 16 bits, as an instruction of many CPUs does: 255 times 127, twice, is
too much for them."""

# problem: bytes_linear
# device: cpu
# verdict: incorrect
# defence: long runs of the extremes of integer types

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        even = x[:, None, ::2].float() * w[None, :, ::2].float()
        odd = x[:, None, 1::2].float() * w[None, :, 1::2].float()
        return (even + odd).clamp(-32768, 32767).sum(-1)
