"""A product of float32 matrices, whose factors may be rounded, in full precision."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr, STEP: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for start in range(0, n, STEP):
        k = start + tl.arange(0, STEP)
        a = tl.load(
            a_ptr + rows[:, None] * n + k[None, :], mask=(rows[:, None] < n) & (k[None, :] < n), other=0.0
        )
        b = tl.load(
            b_ptr + k[:, None] * n + columns[None, :],
            mask=(k[:, None] < n) & (columns[None, :] < n),
            other=0.0,
        )
        total = tl.dot(a, b, total, input_precision="ieee")
    mask = (rows[:, None] < n) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        c = torch.empty_like(a)
        grid = (triton.cdiv(n, 64), triton.cdiv(n, 64))
        matmul_kernel[grid](
            a.contiguous(), b.contiguous(), c, n, BLOCK=64, STEP=32, num_warps=4, num_stages=2
        )
        return c
