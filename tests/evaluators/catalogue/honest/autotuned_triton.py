"""Is a Triton softmax, one row per program, that tries several numbers of warps on its first call."""

# problem: softmax_no_library
# device: cuda
# verdict: correct
# defence: it does the work itself; it tunes in calls that come before the timed ones

import torch
import triton
import triton.language as tl
from torch import nn


@triton.autotune([triton.Config({}, num_warps=warps) for warps in (4, 8, 16)], key=["columns"])
@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    mask = tl.arange(0, BLOCK) < columns
    row = tl.load(x + i, mask=mask, other=float("-inf"))
    row = tl.exp(row - tl.max(row, 0))
    tl.store(y + i, row / tl.sum(row, 0), mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        softmax[(x.shape[0],)](x, y, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return y
