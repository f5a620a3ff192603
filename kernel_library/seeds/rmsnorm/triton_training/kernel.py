"""RMS norm of the last dimension with its backward pass, in Triton, for rows of at most 8,192 elements.

A program keeps its rows in registers. In the backward pass each program goes over many rows, loads the next
ones meanwhile, and keeps its part of the weight's gradient in registers; a last kernel adds the parts, in one
order.
"""

import torch
import triton
import triton.language as tl
from torch import nn
from torch.autograd.function import once_differentiable

SHORT = 1024
"""Elements of the rows that a program takes at a time, if they are short."""
WARPS = {512: 1, 1024: 2, 2048: 4, 4096: 8, 8192: 16}
"""Columns, and the number of warps."""
MOST = 8192
STAGES = 3
"""Of the rows in the backward pass: in use, and being loaded."""


@triton.jit
def forward_rows(
    x, weight, out, scales, rows, eps, COLS: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr
):
    """One program, which computes EACH rows."""
    row = tl.program_id(0).to(tl.int64) * EACH + tl.arange(0, EACH)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (place < COLS)
    spot = row * COLS + place
    value = tl.load(x + spot, mask=inside, other=0.0).to(tl.float32)
    factor = tl.load(weight + place, mask=place < COLS, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1)[:, None] / COLS + eps)
    tl.store(out + spot, value * scale * factor, mask=inside)
    tl.store(scales + row, scale, mask=row < rows)


@triton.jit
def backward_rows(
    x,
    weight,
    grad,
    scales,
    out,
    parts,
    rows,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    EACH: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One program: every n-th group of EACH rows, and a part of the weight's gradient."""
    place = tl.arange(0, BLOCK)[None, :]
    factor = tl.load(weight + place, mask=place < COLS, other=0.0).to(tl.float32)
    total = tl.zeros([1, BLOCK], tl.float32)
    for group in tl.range(tl.program_id(0), tl.cdiv(rows, EACH), tl.num_programs(0), num_stages=STAGES):
        row = (group * EACH + tl.arange(0, EACH)[:, None]).to(tl.int64)
        inside = (row < rows) & (place < COLS)
        spot = row * COLS + place
        value = tl.load(x + spot, mask=inside, other=0.0).to(tl.float32)
        slope = tl.load(grad + spot, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(scales + row, mask=row < rows, other=0.0)
        normed = value * scale
        total += tl.sum(slope * normed, axis=0)[None, :]
        slope *= factor
        shared = tl.sum(slope * normed, axis=1)[:, None] / COLS
        tl.store(out + spot, (slope - normed * shared) * scale, mask=inside)
    tl.store(parts + tl.program_id(0).to(tl.int64) * COLS + place, total, mask=place < COLS)


@triton.jit
def add_parts(parts, out, count, COLS: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """One program: some columns of the sum of `count` rows."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[None, :]
    total = tl.zeros([ROWS, BLOCK], tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)[:, None]
        total += tl.load(parts + row * COLS + place, mask=(row < count) & (place < COLS), other=0.0)
    tl.store(out + place, tl.sum(total, axis=0)[None, :], mask=place < COLS)


def sizes_of(cols):
    """The block, the rows and the warps of a program."""
    block = triton.next_power_of_2(cols)
    each = max(1, SHORT // block)
    return block, each, next(warps for most, warps in WARPS.items() if block * each <= most)


class RMSNormFunction(torch.autograd.Function):
    """RMS norm; the input and a scale for each row are saved for the backward pass."""

    @staticmethod
    def forward(ctx, x, weight, eps):
        """The norm."""
        x, weight = x.contiguous(), weight.contiguous()
        cols = x.shape[-1]
        rows = x.numel() // cols
        out, scales = torch.empty_like(x), torch.empty(rows, dtype=torch.float32, device=x.device)
        if rows:
            block, each, warps = sizes_of(cols)
            grid = (triton.cdiv(rows, each),)
            forward_rows[grid](
                x, weight, out, scales, rows, eps, COLS=cols, BLOCK=block, EACH=each, num_warps=warps
            )
        ctx.save_for_backward(x, weight, scales)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """The gradients of the input and the weight."""
        x, weight, scales = ctx.saved_tensors
        grad = grad.contiguous()
        cols = x.shape[-1]
        rows = x.numel() // cols
        out, slope = torch.empty_like(x), torch.zeros_like(weight)
        if rows:
            block, each, warps = sizes_of(cols)
            resident = max(1, 16 // warps)
            count = min(triton.cdiv(rows, each), resident * processors(x.device))
            parts = torch.empty(count, cols, dtype=torch.float32, device=x.device)
            backward_rows[(count,)](
                x,
                weight,
                grad,
                scales,
                out,
                parts,
                rows,
                COLS=cols,
                BLOCK=block,
                EACH=each,
                STAGES=STAGES,
                num_warps=warps,
            )
            add_parts[(triton.cdiv(cols, 32),)](
                parts, slope, count, COLS=cols, BLOCK=32, ROWS=64, num_warps=8
            )
        return out, slope, None


def processors(device):
    """Of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def rmsnorm(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """The RMS norm of the last dimension, of at most 8,192 elements, with a backward pass."""
    if x.shape[-1] > MOST:
        raise ValueError(f"a row has {x.shape[-1]} elements; {MOST} is the most")
    return RMSNormFunction.apply(x, weight, eps)


class ModelNew(nn.Module):
    """A module with a weight whose forward is `rmsnorm`."""

    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.RMSNorm(features, eps=1e-6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The norm of the last dimension."""
        return rmsnorm(x, self.norm.weight, self.norm.eps)
