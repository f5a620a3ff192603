"""RMSNorm over the last dimension in Triton: each row is read once and written once.

A row that fits is held in registers; a program takes several rows, so that it loads the weights once, and
asks for the next row before it reduces the present one. Longer rows are read twice, the second time mostly
from the caches.
"""

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = {1024: (4, 2), 2048: (4, 4), 4096: (2, 8), 8192: (1, 16), 16384: (1, 16), 32768: (1, 16)}
"""Columns up to which a row is held in registers: rows of a program, and its warps."""
MANY_ROWS = 4096
"""Rows from which on a program takes several: fewer would not fill the GPU."""
LONG_BLOCK, LONG_WARPS = 8192, 16


@triton.jit
def rmsnorm_in_registers(
    x,
    weight,
    out,
    eps,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    EACH: tl.constexpr,
):
    """One program: EACH rows, one after the other; behind the last one, that one again."""
    place = tl.arange(0, BLOCK)
    first = tl.program_id(0) * EACH
    row = first.to(tl.int64)
    coming = tl.load(x + row * COLS + place, mask=place < COLS, other=0.0)
    if weight is not None:
        scale = tl.load(weight + place, mask=place < COLS, other=0.0, eviction_policy="evict_last")
    for step in tl.static_range(EACH):
        value = coming.to(tl.float32)
        spot = out + row * COLS + place
        if step + 1 < EACH:
            row = tl.minimum(first + step + 1, ROWS - 1).to(tl.int64)
            source = x + row * COLS + place
            coming = tl.load(source, mask=place < COLS, other=0.0)
        value *= tl.rsqrt(tl.sum(value * value, axis=0) / COLS + eps)
        if weight is not None:
            value *= scale.to(tl.float32)
        tl.store(spot, value, mask=place < COLS)


@triton.jit
def rmsnorm_of_long_rows(x, weight, out, eps, COLS: tl.constexpr, BLOCK: tl.constexpr):
    """One program: one row, in two passes, the second one backwards."""
    START: tl.constexpr = (COLS - 1) // BLOCK * BLOCK
    row = tl.program_id(0).to(tl.int64) * COLS
    place = tl.arange(0, BLOCK)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, COLS, BLOCK):
        value = tl.load(x + row + start + place, mask=start + place < COLS, other=0.0).to(tl.float32)
        squares += value * value
    factor = tl.rsqrt(tl.sum(squares, axis=0) / COLS + eps)
    for back in range(0, COLS, BLOCK):
        spot = START - back + place
        value = tl.load(x + row + spot, mask=spot < COLS).to(tl.float32)
        value *= factor
        if weight is not None:
            value *= tl.load(weight + spot, mask=spot < COLS, eviction_policy="evict_last").to(tl.float32)
        tl.store(out + row + spot, value, mask=spot < COLS)


def rmsnorm(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float = 1e-6) -> torch.Tensor:
    """x / sqrt(mean(x²) + eps) * weight over the last dimension of a tensor of any shape; float32, float16 or
    bfloat16. `weight`: as many elements as the last dimension has, or none."""
    if x.dtype not in DTYPES:
        raise TypeError(f"RMSNorm of {x.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
    x = x.contiguous()
    weight = None if weight is None else weight.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    cols = x.shape[-1]
    rows = x.numel() // cols
    if cols > max(SHAPES):
        rmsnorm_of_long_rows[(rows,)](x, weight, out, eps, COLS=cols, BLOCK=LONG_BLOCK, num_warps=LONG_WARPS)
        return out
    each, warps = next(shape for most, shape in SHAPES.items() if cols <= most)
    each = each if rows >= MANY_ROWS else 1
    rmsnorm_in_registers[(triton.cdiv(rows, each),)](
        x,
        weight,
        out,
        eps,
        ROWS=rows,
        COLS=cols,
        BLOCK=triton.next_power_of_2(cols),
        EACH=each,
        num_warps=warps,
    )
    return out


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with `torch.nn.RMSNorm(features, eps)` as `norm`."""

    def __init__(self, features: int, eps: float = 1e-6):
        super().__init__()
        self.eps = eps
        self.norm = torch.nn.RMSNorm(features, eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised rows, times the weights."""
        return rmsnorm(x, self.norm.weight, self.eps)
