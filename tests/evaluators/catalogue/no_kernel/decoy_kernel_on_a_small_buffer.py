"""Launches a Triton kernel on a buffer that nothing reads, in addition to the library's work."""

# problem: tanhs_no_library
# device: cuda
# verdict: rejected
# rule: library
# defence: attribution of the code that runs, by its time

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def tanhs(x, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(x + i, tl.load(x + i) + 1.0)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scratch", torch.zeros(1024))

    def forward(self, x, w):
        tanhs[(1,)](self.scratch, BLOCK=1024)
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
