"""A product of half-precision matrices by scalar arithmetic."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def matmul_kernel(a_ptr, b_ptr, c_ptr, n, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), dtype=tl.float32)
    for k in range(n):  # outer products: Triton turns a sum of broadcast products into a `dot`
        a = tl.load(a_ptr + rows * n + k, mask=rows < n, other=0.0)
        b = tl.load(b_ptr + k * n + columns, mask=columns < n, other=0.0)
        total += a.to(tl.float32)[:, None] * b.to(tl.float32)[None, :]
    mask = (rows[:, None] < n) & (columns[None, :] < n)
    tl.store(c_ptr + rows[:, None] * n + columns[None, :], total.to(c_ptr.dtype.element_ty), mask=mask)


class ModelNew(nn.Module):
    def forward(self, a, b):
        n = a.shape[0]
        c = torch.empty_like(a)
        grid = (triton.cdiv(n, 32), triton.cdiv(n, 32))
        matmul_kernel[grid](a.contiguous(), b.contiguous(), c, n, BLOCK=32, num_warps=4)
        return c
