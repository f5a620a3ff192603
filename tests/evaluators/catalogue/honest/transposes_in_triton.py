"""Is a transpose in Triton, one tile per program."""

# problem: transpose_no_library
# device: cuda
# verdict: correct
# defence: moving data is the task here, and its own kernel does it, under any name

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def direct_copy_kernel(x, y, rows, columns, TILE: tl.constexpr):
    start = tl.program_id(0).to(tl.int64) * rows * columns
    r = tl.program_id(1) * TILE + tl.arange(0, TILE)
    c = tl.program_id(2) * TILE + tl.arange(0, TILE)
    read, write = r[:, None] * columns + c[None, :], c[:, None] * rows + r[None, :]
    tile = tl.load(x + start + read, mask=(r[:, None] < rows) & (c[None, :] < columns))
    tl.store(y + start + write, tl.trans(tile), mask=(c[:, None] < columns) & (r[None, :] < rows))


class ModelNew(nn.Module):
    def forward(self, x):
        batch, rows, columns = x.shape
        y = torch.empty(batch, columns, rows, dtype=x.dtype, device=x.device)
        grid = (batch, triton.cdiv(rows, 64), triton.cdiv(columns, 64))
        direct_copy_kernel[grid](x, y, rows, columns, TILE=64)
        return y
