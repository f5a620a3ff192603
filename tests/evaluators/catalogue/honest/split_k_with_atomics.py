"""Is a Triton product that splits the inner dimension and adds the parts with atomics, in an order that
changes."""

# problem: matmul_no_library
# device: cuda
# verdict: correct
# defence: `strict` bounds the error and does not ask for equal bits

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def product(a, b, c, n, SPLIT: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * TILE + tl.arange(0, TILE)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    part = n // SPLIT
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for k in range(tl.program_id(2) * part, tl.program_id(2) * part + part, STEP):
        inner = k + tl.arange(0, STEP)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        right = tl.load(b + inner[:, None] * n + columns[None, :])
        total = tl.dot(left, right, total, input_precision="ieee")
    tl.atomic_add(c + rows[:, None] * n + columns[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        c = torch.zeros_like(a)
        product[(n // 64, n // 64, 4)](a, b, c, n, SPLIT=4, TILE=64, STEP=32, num_warps=8)
        return c
