"""Cross entropy of logits and class numbers in Triton: one pass over the logits, one loss per row.

A warp keeps several rows of few classes in registers, and four warps keep one row of about ten thousand. For
other rows each thread keeps its own running maximum and rescaled sum (Milakov, Gimelshein: "Online normalizer
calculation for softmax", 2018); they are combined once, at the end of the row. The part of a row that starts
at a multiple of 16 bytes is loaded without masks, for any number of classes.
"""

import torch
import triton
import triton.language as tl

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHORT, SHORT_ELEMENTS = 1024, 2048
"""Classes up to which a program of one warp takes several rows, with this number of elements in all: on an
H200 134216 x 1000 took 0.064 ms in float16, and 0.135 with one row per program of four warps."""
LEAST_HELD, HELD, HELD_WARPS = 8192, 16384, 4
"""Rows of more classes than the first and up to the second are kept in registers by this number of warps, if
they start at multiples of 16 bytes: on an H100 13416 x 10000 took 0.0885 ms in float16, 0.0904 to 0.0995 in
one pass by 4 and by 8 warps, and 0.1727 against 0.1756 in float32."""
WARPS = {4096: 4, 16384: 8}
"""Classes up to which a row has this number of warps; beyond, LONG_WARPS."""
LONG_WARPS = 8
DEPTH = 4
"""Loads of 16 bytes that each thread has in flight."""

LOG2E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""Initial value of a running maximum: finite, so that minus infinity in the input does not become NaN."""


@triton.jit
def cross_entropy_in_registers(
    logits, target, loss, ignored, rows, COLS: tl.constexpr, BLOCK: tl.constexpr, EACH: tl.constexpr
):
    """One program, which computes EACH rows."""
    row = tl.program_id(0).to(tl.int64) * EACH + tl.arange(0, EACH)
    place = tl.arange(0, BLOCK)[None, :]
    wanted = tl.load(target + row, mask=row < rows, other=0)
    valid = (wanted != ignored) & (wanted >= 0) & (wanted < COLS)
    chosen = tl.load(logits + row * COLS + wanted, mask=valid & (row < rows), other=0.0).to(tl.float32)
    inside = (row < rows)[:, None] & (place < COLS)
    value = tl.load(logits + row[:, None] * COLS + place, mask=inside, other=float("-inf")).to(tl.float32)
    highest = tl.maximum(tl.max(value, axis=1), LOWEST)
    whole = tl.sum(tl.exp2((value - highest[:, None]) * LOG2E), axis=1)
    store_losses(loss + row, wanted, ignored, valid, highest, chosen, whole, row < rows)


@triton.jit
def store_losses(place, wanted, ignored, valid, highest, chosen, whole, there):
    """The losses of rows with these maxima, logits of the target classes, and sums of exponentials."""
    # The difference first: of two large numbers it is exact, or nearly so.
    result = (highest - chosen) + tl.log(whole)
    tl.store(place, tl.where(wanted == ignored, 0.0, tl.where(valid, result, float("nan"))), mask=there)


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
def cross_entropy_kernel(
    logits,
    target,
    loss,
    ignored,
    COLS: tl.constexpr,
    VECTOR: tl.constexpr,
    THREADS: tl.constexpr,
    DEPTH: tl.constexpr,
    BODY: tl.constexpr,
    EDGE_BLOCK: tl.constexpr,
):
    """One program, which computes one row: BODY elements from a multiple of 16 bytes on, and those before and
    after."""
    LANES: tl.constexpr = THREADS * VECTOR
    STEP: tl.constexpr = DEPTH * LANES
    row = tl.program_id(0).to(tl.int64)
    first = row * COLS
    start = (first + VECTOR - 1) // VECTOR * VECTOR
    lane = tl.arange(0, LANES)[None, :]
    place = tl.arange(0, DEPTH)[:, None] * LANES + lane
    wanted = tl.load(target + row)
    valid = (wanted != ignored) & (wanted >= 0) & (wanted < COLS)
    chosen = tl.load(logits + first + wanted, mask=valid, other=0.0).to(tl.float32)

    peak = tl.full([THREADS], LOWEST, tl.float32)
    total = tl.zeros([THREADS], tl.float32)
    for step in range(0, BODY // STEP * STEP, STEP):
        value = tl.load(logits + start + step + place, eviction_policy="evict_first").to(tl.float32)
        peak, total = add_to(peak, total, value, THREADS, VECTOR)
    for step in range(BODY // STEP * STEP, BODY, LANES):
        value = tl.load(logits + start + step + lane, eviction_policy="evict_first").to(tl.float32)
        peak, total = add_to(peak, total, value, THREADS, VECTOR)

    highest = tl.max(peak, axis=0)
    if BODY < COLS:
        number = tl.arange(0, EDGE_BLOCK)
        spot = first + number + tl.where(number < start - first, 0, BODY)
        edge = tl.load(logits + spot, mask=number < COLS - BODY, other=float("-inf")).to(tl.float32)
        highest = tl.maximum(highest, tl.max(edge, axis=0))
    whole = tl.sum(total * tl.exp2((peak - highest) * LOG2E), axis=0)
    if BODY < COLS:
        whole += tl.sum(tl.exp2((edge - highest) * LOG2E), axis=0)
    store_losses(loss + row, wanted, ignored, valid, highest, chosen, whole, True)


def cross_entropy(logits: torch.Tensor, target: torch.Tensor, ignore_index: int = -100) -> torch.Tensor:
    """The loss of each row of `logits` [rows, classes] for `target` [rows], int64, in the logits' dtype
    (float32, float16 or bfloat16): `F.cross_entropy` with `reduction="none"`. Rows whose target is
    `ignore_index` have no loss, those of any other target outside the classes are NaN."""
    if logits.dtype not in DTYPES:
        raise TypeError(f"cross entropy of {logits.dtype}; it must be one of {', '.join(map(str, DTYPES))}")
    logits, target = logits.contiguous(), target.contiguous()
    rows, cols = logits.shape
    loss = torch.empty(rows, dtype=logits.dtype, device=logits.device)
    if rows == 0:
        return loss
    if cols <= SHORT:
        block = triton.next_power_of_2(cols)
        each = SHORT_ELEMENTS // block
        cross_entropy_in_registers[(triton.cdiv(rows, each),)](
            logits, target, loss, ignore_index, rows, COLS=cols, BLOCK=block, EACH=each, num_warps=1
        )
        return loss
    vector = 16 // logits.element_size()
    if LEAST_HELD < cols <= HELD and cols % vector == 0:
        cross_entropy_in_registers[(rows,)](
            logits, target, loss, ignore_index, rows, COLS=cols, BLOCK=HELD, EACH=1, num_warps=HELD_WARPS
        )
        return loss
    warps = next((warps for most, warps in WARPS.items() if cols <= most), LONG_WARPS)
    lanes = 32 * warps * vector
    # Up to VECTOR - 1 elements lie before the first multiple of 16 bytes, unless all rows start at one.
    body = max(cols - (vector - 1 if cols % vector else 0), 0) // lanes * lanes
    cross_entropy_kernel[(rows,)](
        logits,
        target,
        loss,
        ignore_index,
        COLS=cols,
        VECTOR=vector,
        THREADS=32 * warps,
        DEPTH=DEPTH,
        BODY=body,
        EDGE_BLOCK=triton.next_power_of_2(max(cols - body, 1)),
        num_warps=warps,
    )
    return loss


class ModelNew(torch.nn.Module):
    """A module whose forward is `cross_entropy`."""

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The loss of each row."""
        return cross_entropy(logits, target)
