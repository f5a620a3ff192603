"""Softmax over the last dimension with its backward pass, in Triton: every tensor is read once and written
once.

One program keeps rows that fit in registers, and one warp takes several short rows. Of a longer row, or of
one that does not start at a multiple of 16 bytes, a program keeps a part in registers and reads the rest a
second time, mostly from a cache. The forward pass is that of `softmax/triton`. The backward pass needs only
the outputs: dx = y * (dy - sum(y * dy)).
"""

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHORT = 1024
"""Elements of the rows that a program of one warp takes."""
WARPS = {SHORT: 1, 2048: 2, 4096: 8, 8192: 16, 16384: 16, 32768: 16}
"""Columns up to which a row is kept in registers, and the number of warps."""
BACKWARD_WARPS = {SHORT: 2, 2048: 4, 4096: 8, 8192: 16, 16384: 16}
"""The same for the backward pass, which keeps a row of two tensors."""
LONG = {4: (32, 2), 2: (16, 2)}
"""By element size in bytes: the warps for a long row, and the loads of 16 bytes that each thread has in
flight."""
KEPT = {"forward": 16384, "backward": 8192}
"""Elements of a long row that stay in registers."""

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""Initial value of a running maximum: finite, so that minus infinity in the input does not become NaN."""


@triton.jit
def forward_in_registers(x, out, rows, COLS: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """One program, which computes EACH rows."""
    row = tl.program_id(0).to(tl.int64) * EACH + tl.arange(0, EACH)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (place < COLS)
    spot = row * COLS + place
    value = tl.load(x + spot, mask=inside, other=float("-inf")).to(tl.float32)
    peak = tl.maximum(tl.max(value, axis=1), LOWEST)
    value = tl.exp2((value - peak[:, None]) * LOG2E)
    value *= (1.0 / tl.sum(value, axis=1))[:, None]
    tl.store(out + spot, value, mask=inside)


@triton.jit
def backward_in_registers(y, grad, out, rows, COLS: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr):
    """One program, which computes EACH rows."""
    row = tl.program_id(0).to(tl.int64) * EACH + tl.arange(0, EACH)[:, None]
    place = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (place < COLS)
    spot = row * COLS + place
    value = tl.load(y + spot, mask=inside, other=0.0).to(tl.float32)
    slope = tl.load(grad + spot, mask=inside, other=0.0).to(tl.float32)
    shared = tl.sum(value * slope, axis=1)[:, None]
    tl.store(out + spot, value * (slope - shared), mask=inside)


@triton.jit
def max_of_threads(tile, THREADS: tl.constexpr, VECTOR: tl.constexpr):
    """The largest of each thread's elements of a tile [depth, THREADS * VECTOR], without synchronisation."""
    return tl.max(tl.max(tile, axis=0).reshape(THREADS, VECTOR), axis=1)


@triton.jit
def sum_of_threads(tile, THREADS: tl.constexpr, VECTOR: tl.constexpr):
    """The sum of each thread's elements of a tile [depth, THREADS * VECTOR]."""
    return tl.sum(tl.sum(tile, axis=0).reshape(THREADS, VECTOR), axis=1)


@triton.jit
def add_to(peak, total, tile, THREADS: tl.constexpr, VECTOR: tl.constexpr):
    """Updates each thread's maximum and sum with another tile."""
    higher = tl.maximum(peak, max_of_threads(tile, THREADS, VECTOR))
    spread = tl.broadcast_to(higher[:, None], [THREADS, VECTOR]).reshape(1, THREADS * VECTOR)
    power = tl.exp2((tile - spread) * LOG2E)
    return higher, total * tl.exp2((peak - higher) * LOG2E) + sum_of_threads(power, THREADS, VECTOR)


@triton.jit
def forward_of_long_rows(
    x,
    out,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,
    THREADS: tl.constexpr,
    DEPTH: tl.constexpr,
    LOOPED: tl.constexpr,
    KEPT_DEPTH: tl.constexpr,
    EDGE: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
):
    """One program: one row of `LOOPED + KEPT + EDGE` elements. The first two parts start at a multiple of 16
    bytes and need no masks; the edge is the elements before and after them."""
    LANES: tl.constexpr = THREADS * VECTOR
    STEP: tl.constexpr = DEPTH * LANES
    BODY: tl.constexpr = LOOPED + KEPT_DEPTH * LANES
    first = tl.program_id(0).to(tl.int64) * COLS
    start = (first + VECTOR - 1) // VECTOR * VECTOR
    place = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    held = LOOPED + tl.arange(0, KEPT_DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    kept = tl.load(x + start + held, eviction_policy="evict_first").to(tl.float32)

    peak = tl.full([THREADS], LOWEST, tl.float32)
    total = tl.zeros([THREADS], tl.float32)
    for step in range(0, LOOPED, STEP):
        value = tl.load(x + start + step + place, eviction_policy="evict_last").to(tl.float32)
        peak, total = add_to(peak, total, value, THREADS, VECTOR)

    highest = tl.max(tl.maximum(peak, max_of_threads(kept, THREADS, VECTOR)), axis=0)
    if EDGE > 0:
        number = tl.arange(0, EDGE_BLOCK)
        spot = first + number + tl.where(number < start - first, 0, BODY)
        edge = tl.load(x + spot, mask=number < EDGE, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(highest, tl.max(edge, axis=0))
    kept = tl.exp2((kept - highest) * LOG2E)
    total = total * tl.exp2((peak - highest) * LOG2E) + sum_of_threads(kept, THREADS, VECTOR)
    whole = tl.sum(total, axis=0)
    if EDGE > 0:
        edge = tl.exp2((edge - highest) * LOG2E)
        whole += tl.sum(edge, axis=0)
        tl.store(out + spot, edge * (1.0 / whole), mask=number < EDGE, cache_modifier=".cs")
    scale = 1.0 / whole

    # Backwards: the last elements read are the most likely to be in the L1 cache.
    for back in range(STEP, LOOPED + STEP, STEP):
        spots = start + (LOOPED - back) + place
        value = tl.load(x + spots, eviction_policy="evict_first").to(tl.float32)
        tl.store(out + spots, tl.exp2((value - highest) * LOG2E) * scale, cache_modifier=".cs")
    tl.store(out + start + held, kept * scale, cache_modifier=".cs")


@triton.jit
def backward_of_long_rows(
    y,
    grad,
    out,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,
    THREADS: tl.constexpr,
    DEPTH: tl.constexpr,
    LOOPED: tl.constexpr,
    KEPT_DEPTH: tl.constexpr,
    EDGE: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
):
    """One program: one row, in the parts of `forward_of_long_rows`."""
    LANES: tl.constexpr = THREADS * VECTOR
    STEP: tl.constexpr = DEPTH * LANES
    BODY: tl.constexpr = LOOPED + KEPT_DEPTH * LANES
    first = tl.program_id(0).to(tl.int64) * COLS
    start = (first + VECTOR - 1) // VECTOR * VECTOR
    place = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    held = LOOPED + tl.arange(0, KEPT_DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    kept = tl.load(y + start + held, eviction_policy="evict_first").to(tl.float32)
    kept_slope = tl.load(grad + start + held, eviction_policy="evict_first").to(tl.float32)

    total = tl.zeros([THREADS], tl.float32)
    for step in range(0, LOOPED, STEP):
        value = tl.load(y + start + step + place, eviction_policy="evict_last").to(tl.float32)
        slope = tl.load(grad + start + step + place, eviction_policy="evict_last").to(tl.float32)
        total += sum_of_threads(value * slope, THREADS, VECTOR)

    whole = tl.sum(total + sum_of_threads(kept * kept_slope, THREADS, VECTOR), axis=0)
    if EDGE > 0:
        number = tl.arange(0, EDGE_BLOCK)
        spot = first + number + tl.where(number < start - first, 0, BODY)
        edge = tl.load(y + spot, mask=number < EDGE, other=0.0).to(tl.float32)
        edge_slope = tl.load(grad + spot, mask=number < EDGE, other=0.0).to(tl.float32)
        whole += tl.sum(edge * edge_slope, axis=0)
        tl.store(out + spot, edge * (edge_slope - whole), mask=number < EDGE, cache_modifier=".cs")

    for back in range(STEP, LOOPED + STEP, STEP):
        spots = start + (LOOPED - back) + place
        value = tl.load(y + spots, eviction_policy="evict_first").to(tl.float32)
        slope = tl.load(grad + spots, eviction_policy="evict_first").to(tl.float32)
        tl.store(out + spots, value * (slope - whole), cache_modifier=".cs")
    tl.store(out + start + held, kept * (kept_slope - whole), cache_modifier=".cs")


def launch(way, warps_of, in_registers, of_long_rows, tensors):
    """Computes the last of the tensors, which are contiguous and of one shape, from the others."""
    x = tensors[0]
    if x.numel() == 0:
        return tensors[-1]
    cols = x.shape[-1]
    rows = x.numel() // cols
    vector = 16 // x.element_size()
    long_warps, most_depth = LONG[x.element_size()]
    lanes = 32 * long_warps * vector
    if cols < lanes + vector or (cols % vector == 0 and cols <= max(warps_of)):
        block = triton.next_power_of_2(cols)
        warps = next(warps for most, warps in warps_of.items() if block <= most)
        each = max(1, SHORT // block)
        grid = (triton.cdiv(rows, each),)
        in_registers[grid](*tensors, rows, COLS=cols, BLOCK=block, EACH=each, num_warps=warps)
        return tensors[-1]
    # Up to VECTOR - 1 elements lie before the first multiple of 16 bytes, unless all rows start at one.
    body = (cols - (vector - 1 if cols % vector else 0)) // lanes
    kept = 1 << min(body, KEPT[way] // lanes).bit_length() - 1
    depth = next(depth for depth in (most_depth, 1) if (body - kept) % depth == 0)
    edge = cols - body * lanes
    of_long_rows[(rows,)](
        *tensors,
        COLS=cols,
        VECTOR=vector,
        THREADS=32 * long_warps,
        DEPTH=depth,
        LOOPED=(body - kept) * lanes,
        KEPT_DEPTH=kept,
        EDGE=edge,
        EDGE_BLOCK=triton.next_power_of_2(max(edge, 1)),
        num_warps=long_warps,
    )
    return tensors[-1]


class SoftmaxFunction(torch.autograd.Function):
    """Softmax, of which the output is saved for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        """The softmax."""
        x = x.contiguous()
        y = launch("forward", WARPS, forward_in_registers, forward_of_long_rows, [x, torch.empty_like(x)])
        ctx.save_for_backward(y)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        """The input's gradient."""
        (y,) = ctx.saved_tensors
        tensors = [y, grad.contiguous(), torch.empty_like(y)]
        return launch("backward", BACKWARD_WARPS, backward_in_registers, backward_of_long_rows, tensors)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of a tensor of any shape; float32, float16 or bfloat16."""
    if x.dtype not in DTYPES:
        raise TypeError(f"softmax of {x.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
    return SoftmaxFunction.apply(x)


class ModelNew(torch.nn.Module):
    """A module whose forward is `softmax`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Softmax over the last dimension."""
        return softmax(x)
