"""LayerNorm in Triton, over ordinary and over huge rows.

An ordinary row is held in registers: one read, one write; of short rows a program takes several, so that it
loads the weights once, and asks for the next row before it reduces the present one. Few huge rows are split
over many programs: the first kernel finds mean and squared deviations of each part, the second merges them
(Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979) and
normalises, starting where the first one ended, since that is still in the L2 cache.
"""

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = {1024: (4, 2), 2048: (4, 4), 4096: (1, 4), 8192: (1, 8), 16384: (1, 16), 32768: (1, 16)}
"""Columns up to which a row is held in registers: rows of a program, and its warps. On an H200 (1, 4) took
0.0353 ms for 8192 x 4096 in float16, (2, 8) 0.0363, with loads that leave the cache early 0.0379."""
MANY_ROWS = 4096
"""Rows from which on a program takes several: fewer would not fill the GPU."""
PART, PART_WARPS = 8192, 8
"""Elements of one part of a huge row, and the warps for it."""
SLICE, SLICE_ROWS, SLICE_WARPS = 1024, 8, 4
"""Columns and rows of which a program of the second kernel takes, weights loaded once, and its warps: 0.211
ms for 16 x 4194304 in float32 on an H200, with 2048, 4 and 8 0.222 ms. A single launch that keeps a row on
chip, with a barrier of all programs a row, took 0.28 ms."""


@triton.jit
def layernorm_in_registers(
    x,
    weight,
    bias,
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
    if bias is not None:
        shift = tl.load(bias + place, mask=place < COLS, other=0.0, eviction_policy="evict_last")
    for step in tl.static_range(EACH):
        value = coming.to(tl.float32)
        spot = out + row * COLS + place
        if step + 1 < EACH:
            row = tl.minimum(first + step + 1, ROWS - 1).to(tl.int64)
            source = x + row * COLS + place
            coming = tl.load(source, mask=place < COLS, other=0.0)
        value -= tl.sum(value, axis=0) / COLS
        squares = tl.where(place < COLS, value * value, 0.0)
        value *= tl.rsqrt(tl.sum(squares, axis=0) / COLS + eps)
        if weight is not None:
            value *= scale.to(tl.float32)
        if bias is not None:
            value += shift.to(tl.float32)
        tl.store(spot, value, mask=place < COLS)


@triton.jit
def measure_parts(x, parts, ROWS: tl.constexpr, COLS: tl.constexpr, PARTS: tl.constexpr, PART: tl.constexpr):
    """One program: mean and sum of squared deviations of one part of one row."""
    part, row = tl.program_id(0) // ROWS, tl.program_id(0) % ROWS
    place = part * PART + tl.arange(0, PART)
    count = tl.minimum(PART, COLS - part * PART)
    value = tl.load(x + row.to(tl.int64) * COLS + place, mask=place < COLS, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=0) / count
    deviation = tl.where(place < COLS, value - mean, 0.0)
    tl.store(parts + row * PARTS + part, mean)
    tl.store(parts + (ROWS + row) * PARTS + part, tl.sum(deviation * deviation, axis=0))


@triton.jit
def normalise_parts(
    x,
    parts,
    weight,
    bias,
    out,
    eps,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PARTS: tl.constexpr,
    PARTS_BLOCK: tl.constexpr,
    PART: tl.constexpr,
    SLICE: tl.constexpr,
    EACH: tl.constexpr,
):
    """One program: SLICE columns of EACH rows; behind the last one, that one again."""
    GROUPS: tl.constexpr = (ROWS + EACH - 1) // EACH
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    place = program // GROUPS * SLICE + tl.arange(0, SLICE)
    part = tl.arange(0, PARTS_BLOCK)
    count = tl.where(part < PARTS, tl.minimum(PART, COLS - part * PART), 0)
    if weight is not None:
        scale = tl.load(weight + place, mask=place < COLS, eviction_policy="evict_last").to(tl.float32)
    if bias is not None:
        shift = tl.load(bias + place, mask=place < COLS, eviction_policy="evict_last").to(tl.float32)
    for step in range(EACH):
        row = tl.minimum(program % GROUPS * EACH + step, ROWS - 1)
        spot = row.to(tl.int64) * COLS + place
        value = tl.load(x + spot, mask=place < COLS, eviction_policy="evict_first").to(tl.float32)
        means = tl.load(parts + row * PARTS + part, mask=part < PARTS, other=0.0)
        squares = tl.load(parts + (ROWS + row) * PARTS + part, mask=part < PARTS, other=0.0)
        mean = tl.sum(means * count, axis=0) / COLS
        variance = tl.sum(squares + (means - mean) * (means - mean) * count, axis=0) / COLS
        value = (value - mean) * tl.rsqrt(variance + eps)
        if weight is not None:
            value *= scale
        if bias is not None:
            value += shift
        tl.store(out + spot, value, mask=place < COLS)


def layernorm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    dims: int = 1,
) -> torch.Tensor:
    """Normalises over the last `dims` dimensions of a tensor of any shape; float32, float16 or bfloat16.
    `weight` and `bias`: of the shape of those dimensions, or none."""
    if x.dtype not in DTYPES:
        raise TypeError(f"LayerNorm of {x.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
    x = x.contiguous()
    weight = None if weight is None else weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    cols = x.shape[-dims:].numel()
    rows = x.numel() // cols
    if cols <= max(SHAPES):
        each, warps = next(shape for most, shape in SHAPES.items() if cols <= most)
        each = each if rows >= MANY_ROWS else 1
        layernorm_in_registers[(triton.cdiv(rows, each),)](
            x,
            weight,
            bias,
            out,
            eps,
            ROWS=rows,
            COLS=cols,
            BLOCK=triton.next_power_of_2(cols),
            EACH=each,
            num_warps=warps,
        )
        return out
    count = triton.cdiv(cols, PART)
    parts = torch.empty((2, rows, count), dtype=torch.float32, device=x.device)
    measure_parts[(rows * count,)](
        x, parts, ROWS=rows, COLS=cols, PARTS=count, PART=PART, num_warps=PART_WARPS
    )
    normalise_parts[(triton.cdiv(cols, SLICE) * triton.cdiv(rows, SLICE_ROWS),)](
        x,
        parts,
        weight,
        bias,
        out,
        eps,
        ROWS=rows,
        COLS=cols,
        PARTS=count,
        PARTS_BLOCK=triton.next_power_of_2(count),
        PART=PART,
        SLICE=SLICE,
        EACH=SLICE_ROWS,
        num_warps=SLICE_WARPS,
    )
    return out


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with `torch.nn.LayerNorm(normalized_shape)` as `norm`."""

    def __init__(self, normalized_shape: int | tuple[int, ...]):
        super().__init__()
        self.norm = torch.nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised tensor, times the weights, plus the bias."""
        norm = self.norm
        return layernorm(x, norm.weight, norm.bias, norm.eps, len(norm.normalized_shape))
