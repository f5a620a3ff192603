"""Softmax over the last dimension in Triton: each row is read once and written once.

One program keeps a row that fits in registers, and one warp takes several short rows. If a row is longer, or
does not start at a multiple of 16 bytes, a program keeps a part in registers, finds the maximum and sum of
the rest in one pass (Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018) and reads
the rest again, mostly from the L1 cache. Each thread keeps its own maximum and sum until the
end of the row.
"""

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHORT = 1024
"""Elements of the rows that a program of one warp takes. On an H200 262144 x 256 in float16 took 0.0666 ms,
and 0.161 with one row per program of two warps."""
WARPS = {SHORT: 1, 2048: 2, 4096: 8, 8192: 16, 16384: 16, 32768: 16}
"""Columns up to which a row is kept in registers, and the number of warps. On an H200 8192 x 8192 in float16
took 0.0659 to 0.0677 ms with 16 warps, 0.0675 to 0.0688 with 8 and with 4; with early eviction of loads
0.0702 to 0.0720."""
LONG = {4: (32, 2), 2: (16, 2)}
"""By element size in bytes: the warps for a long row, and the loads of 16 bytes that each thread has in
flight in the pass over it. On an H200 (32, 2) took 0.533 ms for 4096 x 65536 in float32, (16, 2) 0.547; for
4096 x 50257 in float16 (16, 2) took 0.220 ms, (16, 4) with twice as much kept 0.297."""
KEPT = 16384
"""Elements of a long row that stay in registers."""

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""Initial value of a running maximum: finite, so that minus infinity in the input does not become NaN."""


@triton.jit
def softmax_in_registers(x, out, rows, COLS: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr):
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
def softmax_of_long_rows(
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


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of a tensor of any shape; float32, float16 or bfloat16."""
    if x.dtype not in DTYPES:
        raise TypeError(f"softmax of {x.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() == 0:
        return out
    cols = x.shape[-1]
    rows = x.numel() // cols
    vector = 16 // x.element_size()
    long_warps, most_depth = LONG[x.element_size()]
    lanes = 32 * long_warps * vector
    if cols < lanes + vector or (cols % vector == 0 and cols <= max(WARPS)):
        block = triton.next_power_of_2(cols)
        warps = next(warps for most, warps in WARPS.items() if block <= most)
        each = max(1, SHORT // block)
        grid = (triton.cdiv(rows, each),)
        softmax_in_registers[grid](x, out, rows, COLS=cols, BLOCK=block, EACH=each, num_warps=warps)
        return out
    # Up to VECTOR - 1 elements lie before the first multiple of 16 bytes, unless all rows start at one.
    body = (cols - (vector - 1 if cols % vector else 0)) // lanes
    kept = 1 << min(body, KEPT // lanes).bit_length() - 1
    depth = next(depth for depth in (most_depth, 1) if (body - kept) % depth == 0)
    edge = cols - body * lanes
    softmax_of_long_rows[(rows,)](
        x,
        out,
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
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `softmax`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Softmax over the last dimension."""
        return softmax(x)
