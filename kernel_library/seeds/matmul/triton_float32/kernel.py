"""Float32 matrix product at float32's accuracy, on half-precision tensor cores in Triton.

Each operand is scaled by a power of two and written as the sum of two float16 terms, 22 bits in all; three
of the four products of terms matter. The tensor cores round their sums down, so the sum of each step is
added to the total by ordinary instructions (Ootomo, Yokota: "Recovering single precision
accuracy from Tensor Cores while surpassing the FP32 theoretical peak performance", 2022).
"""

import torch
import triton
import triton.language as tl

BLOCK_M, BLOCK_N, BLOCK_K, GROUP, WARPS, STAGES = 128, 128, 64, 8, 8, 3
"""Tile of the output, depth of one step, rows of tiles that share columns in the L2 cache."""
PEAK_BLOCK, SPLIT_BLOCK = 16384, 2048
"""Elements per program that finds the largest one, and per program that splits."""


@triton.jit
def peak_of_block(job, values, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """The largest absolute value of a block's finite numbers: others affect only their own row or column."""
    place = job.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    size = tl.abs(tl.load(values + place, mask=place < ELEMENTS, other=0.0))
    return tl.max(tl.where(size < float("inf"), size, 0.0), axis=0)


@triton.jit
def find_peaks(a, b, peaks, A: tl.constexpr, B: tl.constexpr, BLOCK: tl.constexpr):
    """The largest absolute value of each block of A (of A elements), then of B."""
    A_JOBS: tl.constexpr = (A + BLOCK - 1) // BLOCK
    job = tl.program_id(0)
    if job < A_JOBS:
        tl.store(peaks + job, peak_of_block(job, a, A, BLOCK))
    else:
        tl.store(peaks + job, peak_of_block(job - A_JOBS, b, B, BLOCK))


@triton.jit
def power_of_two(peaks, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The power of two that brings the largest element to 2**14, by its exponent's bits, and its inverse."""
    peak = tl.zeros([BLOCK], tl.float32)
    for start in range(0, COUNT, BLOCK):
        place = start + tl.arange(0, BLOCK)
        peak = tl.maximum(peak, tl.load(peaks + place, mask=place < COUNT, other=0.0))
    exponent = tl.max(peak, axis=0).to(tl.int32, bitcast=True) >> 23
    biased = tl.minimum(268 - exponent, 253)
    scale, inverse = biased << 23, (254 - biased) << 23
    return scale.to(tl.float32, bitcast=True), inverse.to(tl.float32, bitcast=True)


@triton.jit
def split_block(job, values, scale, terms, ELEMENTS: tl.constexpr, BLOCK: tl.constexpr):
    """A block of values as a sum of two float16 terms, all first terms before all second ones."""
    place = job.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(values + place, mask=place < ELEMENTS, other=0.0) * scale
    term = value.to(tl.float16)
    tl.store(terms + place, term, mask=place < ELEMENTS)
    tl.store(terms + ELEMENTS + place, (value - term.to(tl.float32)).to(tl.float16), mask=place < ELEMENTS)


@triton.jit
def split(
    a,
    b,
    peaks,
    a_terms,
    b_terms,
    scales,
    A: tl.constexpr,
    B: tl.constexpr,
    PEAK_BLOCK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The first programs split A, the others B."""
    A_JOBS: tl.constexpr = (A + BLOCK - 1) // BLOCK
    A_PEAKS: tl.constexpr = (A + PEAK_BLOCK - 1) // PEAK_BLOCK
    B_PEAKS: tl.constexpr = (B + PEAK_BLOCK - 1) // PEAK_BLOCK
    job = tl.program_id(0)
    if job < A_JOBS:
        scale, inverse = power_of_two(peaks, A_PEAKS, 1024)
        split_block(job, a, scale, a_terms, A, BLOCK)
        if job == 0:
            tl.store(scales, inverse)
    else:
        scale, inverse = power_of_two(peaks + A_PEAKS, B_PEAKS, 1024)
        split_block(job - A_JOBS, b, scale, b_terms, B, BLOCK)
        if job == A_JOBS:
            tl.store(scales + 1, inverse)


@triton.jit
def multiply(
    a,
    b,
    scales,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One program: a BLOCK_M x BLOCK_N tile of the output."""
    TILE_ROWS: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    TILE_COLUMNS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    tile = tl.program_id(0)
    first = tile // (GROUP * TILE_COLUMNS) * GROUP
    height = tl.minimum(GROUP, TILE_ROWS - first)
    within = tile % (GROUP * TILE_COLUMNS)
    row = (first + within % height) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = within // height * BLOCK_N + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + tl.where(row < M, row, 0).to(tl.int64)[:, None] * K + depth[None, :]
    right = b + depth.to(tl.int64)[:, None] * N + column[None, :]
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, K, BLOCK_K):
        if K % BLOCK_K == 0 and N % BLOCK_N == 0:
            a0, a1 = tl.load(left), tl.load(left + M * K)
            b0, b1 = tl.load(right), tl.load(right + K * N)
        else:
            known = start + depth < K
            inside = known[:, None] & (column < N)[None, :]
            a0 = tl.load(left, mask=known[None, :], other=0.0)
            a1 = tl.load(left + M * K, mask=known[None, :], other=0.0)
            b0 = tl.load(right, mask=inside, other=0.0)
            b1 = tl.load(right + K * N, mask=inside, other=0.0)
        part = tl.dot(a1, b0)
        part = tl.dot(a0, b1, part)
        part = tl.dot(a0, b0, part)
        total += part
        left += BLOCK_K
        right += BLOCK_K * N
    # Not their product, which may be too small for float32; the lower one first: the higher may be too much.
    lower = tl.minimum(tl.load(scales), tl.load(scales + 1))
    total = total * lower * tl.maximum(tl.load(scales), tl.load(scales + 1))
    spot = out + row.to(tl.int64)[:, None] * N + column[None, :]
    tl.store(spot, total, mask=(row < M)[:, None] & (column < N)[None, :])


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N], float32. A row or column with a non-finite element gives NaN in the product.
    Relative to the largest elements of either operand the error is that of float32 products: elements
    below 2**-24 of those are lost."""
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        raise TypeError(f"matmul of {a.dtype} and {b.dtype}; both must be float32")
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    peaks_a, peaks_b = triton.cdiv(m * k, PEAK_BLOCK), triton.cdiv(k * n, PEAK_BLOCK)
    a_terms = torch.empty((2, m, k), dtype=torch.float16, device=a.device)
    b_terms = torch.empty((2, k, n), dtype=torch.float16, device=a.device)
    peaks = torch.empty(peaks_a + peaks_b, dtype=torch.float32, device=a.device)
    scales = torch.empty(2, dtype=torch.float32, device=a.device)
    find_peaks[(peaks_a + peaks_b,)](a, b, peaks, A=m * k, B=k * n, BLOCK=PEAK_BLOCK, num_warps=8)
    jobs = triton.cdiv(m * k, SPLIT_BLOCK) + triton.cdiv(k * n, SPLIT_BLOCK)
    split[(jobs,)](
        a, b, peaks, a_terms, b_terms, scales, A=m * k, B=k * n, PEAK_BLOCK=PEAK_BLOCK, BLOCK=SPLIT_BLOCK
    )
    multiply[(triton.cdiv(m, BLOCK_M) * triton.cdiv(n, BLOCK_N),)](
        a_terms,
        b_terms,
        scales,
        out,
        M=m,
        N=n,
        K=k,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
        BLOCK_K=BLOCK_K,
        GROUP=GROUP,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `matmul`."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The matrix product."""
        return matmul(a, b)
