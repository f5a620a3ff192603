"""Implements the cheap tanh itself and leaves the product, where the time goes, to the library."""

# problem: tanhs_no_library
# device: cuda
# verdict: rejected
# rule: library
# defence: attribution of the code that runs, by its time

import triton
import triton.language as tl
from torch import nn


@triton.jit
def tanh(x, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i, mask=i < n)
    tl.store(x + i, 2 * tl.sigmoid(2 * value) - 1, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = x @ w
            tanh[(triton.cdiv(x.numel(), 1024),)](x, x.numel(), BLOCK=1024)
        return x
