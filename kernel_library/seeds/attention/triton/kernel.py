"""Causal attention, forward, in Triton: one pass over keys and values, without storing scores in memory.

After FlashAttention-2 (Dao, 2023): each program keeps a block of queries, takes the keys up to it block by
block and rescales what it has when a row's maximum grows. Blocks below the diagonal need no mask. The
programs with most keys start first, so that the short ones fill the gaps at the end.
"""

import math

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16)
TILES = {64: (128, 64, 4, 3), 128: (128, 64, 8, 3), 256: (64, 64, 8, 2)}
"""For head dimensions up to the key: queries of a program, keys of a step (a divisor), warps, stages."""


@triton.jit
def load_rows(x, row, end, DIM: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, TMA: tl.constexpr):
    """ROWS rows of DIM elements as a tile, zeros from row `end` on; by TMA where there is no such row."""
    if TMA:
        tile = x.load([row, 0])
    else:
        place, column = row + tl.arange(0, ROWS)[:, None], tl.arange(0, WIDTH)[None, :]
        spot = x + place.to(tl.int64) * DIM + column
        tile = tl.load(spot, mask=(place < end) & (column < DIM), other=0.0)
    return tile


@triton.jit
def attend(
    total,
    weight,
    peak,
    query,
    k,
    v,
    queries,
    base,
    first,
    last,
    end,
    scale,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    KEYS: tl.constexpr,
    TMA: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Updates the state of a block of queries with the keys from `first` to `last`."""
    for start in tl.range(first, last, KEYS):
        key = load_rows(k, base + start, end, DIM, KEYS, WIDTH, TMA)
        score = tl.dot(query, key.T)
        if MASKED:
            known = queries[:, None] >= start + tl.arange(0, KEYS)[None, :]
            score = tl.where(known, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, axis=1) * scale)
        power = tl.exp2(score * scale - higher[:, None])
        shrink = tl.exp2(peak - higher)
        weight = weight * shrink + tl.sum(power, axis=1)
        value = load_rows(v, base + start, end, DIM, KEYS, WIDTH, TMA)
        total = tl.dot(power.to(value.dtype), value, total * shrink[:, None])
        peak = higher
    return total, weight, peak


@triton.jit
def attention_kernel(
    q,
    k,
    v,
    out,
    scale,
    LENGTH: tl.constexpr,
    DIM: tl.constexpr,
    WIDTH: tl.constexpr,
    QUERIES: tl.constexpr,
    KEYS: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: QUERIES queries of one head. `scale` is for powers of two."""
    block = tl.num_programs(1) - 1 - tl.program_id(1)
    base = tl.program_id(0) * LENGTH
    end = base + LENGTH
    queries = block * QUERIES + tl.arange(0, QUERIES)
    diagonal = block * QUERIES
    place, column = queries[:, None], tl.arange(0, WIDTH)[None, :]
    spot = (base + place).to(tl.int64) * DIM + column
    inside = (place < LENGTH) & (column < DIM)
    query = tl.load(q + spot, mask=inside, other=0.0)
    peak = tl.full([QUERIES], float("-inf"), tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    total = tl.zeros([QUERIES, WIDTH], tl.float32)
    total, weight, peak = attend(
        total, weight, peak, query, k, v, queries, base, 0, diagonal, end, scale, DIM, WIDTH, KEYS, TMA, False
    )
    last = tl.minimum(diagonal + QUERIES, LENGTH)
    total, weight, peak = attend(
        total,
        weight,
        peak,
        query,
        k,
        v,
        queries,
        base,
        diagonal,
        last,
        end,
        scale,
        DIM,
        WIDTH,
        KEYS,
        TMA,
        True,
    )
    total /= weight[:, None]
    tl.store(out + spot, total.to(out.dtype.element_ty), mask=inside)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(q kᵀ / sqrt(dim), each query attending to keys up to its own position) v, for float16 or
    bfloat16 tensors [batch, heads, length, dim] of one shape, dim at most 256."""
    if q.dtype not in DTYPES or k.dtype != q.dtype or v.dtype != q.dtype:
        raise TypeError(f"attention of {q.dtype}, {k.dtype}, {v.dtype}; all must be float16, or all bfloat16")
    if q.dim() != 4 or not q.shape == k.shape == v.shape or q.shape[3] > max(TILES):
        sizes = ", ".join(str(tuple(each.shape)) for each in (q, k, v))
        raise ValueError(
            f"attention of {sizes}; made for [batch, heads, length, dim], the same for all, dim at most 256"
        )
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    batch, heads, length, dim = q.shape
    out = torch.empty_like(q)
    if q.numel() == 0:
        return out
    width = max(16, triton.next_power_of_2(dim))
    queries, keys, warps, stages = next(tile for most, tile in TILES.items() if width <= most)
    aligned = k.data_ptr() % 16 == v.data_ptr() % 16 == 0
    tma = aligned and width == dim and length % keys == 0
    if tma:
        k, v = (
            TensorDescriptor.from_tensor(each.view(batch * heads * length, dim), [keys, dim])
            for each in (k, v)
        )
    attention_kernel[(batch * heads, triton.cdiv(length, queries))](
        q,
        k,
        v,
        out,
        math.log2(math.e) / math.sqrt(dim),
        LENGTH=length,
        DIM=dim,
        WIDTH=width,
        QUERIES=queries,
        KEYS=keys,
        TMA=tma,
        num_warps=warps,
        num_stages=stages,
    )
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `attention`."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """The weighted mean, for each query, of the values up to its position."""
        return attention(q, k, v)
