"""2-D convolution, ReLU and max-pool in Triton: an implicit GEMM of output pixels by channels, then a pool.

The input is folded by the stride: stride x stride pixels become channels, innermost, in float16 with a
border of zeros. The convolution then has stride 1, and each row of a window is one contiguous run that loads
by 16 bytes without masks. Products of float16, summed in float32: for tolerances of about 1e-3. The
convolution's result is float16 with channels innermost, and mostly stays in the L2 cache.
"""

import torch
import triton
import triton.language as tl

BLOCK_M, BLOCK_K, WARPS, STAGES = 128, 64, 8, 3
"""Pixels of a tile and taps of one step."""
PACK_BLOCK, FOLD_ELEMENTS = 1024, 8192
"""Elements of a program that packs weights, and at most of one that folds."""
POOL_CHANNELS, POOL_WARPS = 32, 8
"""Channels of a program that pools a row of pixels, and its warps."""


@triton.jit
def pack(
    job,
    weight,
    packed,
    C: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    STEP_W: tl.constexpr,
    E: tl.constexpr,
    SPAN: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Packs weights into [TAPS][COLUMNS], in the order of the folded input, with zeros around."""
    place = job * BLOCK + tl.arange(0, BLOCK)
    tap, channel = place // COLUMNS, place % COLUMNS
    element, within = tap % E, tap % E % STEP_W
    r = tap // SPAN * STRIDE_H + element // STEP_W % STRIDE_H
    s = tap % SPAN // E * STRIDE_W + within
    c = element // (STEP_W * STRIDE_H)
    used = (channel < K) & (c < C) & (r < R) & (s < S) & (within < STRIDE_W)
    value = tl.load(weight + ((channel * C + c) * R + r) * S + s, mask=used, other=0.0)
    tl.store(packed + place, value.to(tl.float16), mask=tap < TAPS)


@triton.jit
def fold(
    job,
    x,
    folded,
    N: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    STEP_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    HD: tl.constexpr,
    WD: tl.constexpr,
    E: tl.constexpr,
    LINES: tl.constexpr,
    COLS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """One row of folded pixels, or a group of its elements: STRIDE_H rows of the input, interleaved."""
    WIDTH: tl.constexpr = LINES * STEP_W
    row, group = job // GROUPS, job % GROUPS
    n = row // HD
    line = group * LINES + tl.arange(0, LINES)
    c = line // STRIDE_H
    h = row % HD * STRIDE_H + line % STRIDE_H - PAD_H
    flat = tl.arange(0, COLS * STEP_W)
    w = flat - PAD_W
    if STEP_W != STRIDE_W:
        w = tl.where(flat % STEP_W < STRIDE_W, flat // STEP_W * STRIDE_W + flat % STEP_W - PAD_W, W)
    channels = tl.where(n < N, C, 0)
    known = ((c < channels) & (h >= 0) & (h < H))[:, None] & ((w >= 0) & (w < W))[None, :]
    source = x + n.to(tl.int64) * (C * H * W) + (c * H + h) * W
    value = tl.load(source[:, None] + w[None, :], mask=known, other=0.0).to(tl.float16)
    value = value.reshape(LINES, COLS, STEP_W).permute(1, 0, 2).reshape(COLS, WIDTH)
    column = tl.arange(0, COLS)
    element = group * WIDTH + tl.arange(0, WIDTH)
    spot = folded + row.to(tl.int64) * (WD * E) + column[:, None] * E + element[None, :]
    tl.store(spot, value, mask=(column < WD)[:, None] & (element < E)[None, :])


@triton.jit
def prepare(
    weight,
    packed,
    x,
    folded,
    N: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    STRIDE_H: tl.constexpr,
    STRIDE_W: tl.constexpr,
    STEP_W: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    HD: tl.constexpr,
    WD: tl.constexpr,
    E: tl.constexpr,
    SPAN: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACK_JOBS: tl.constexpr,
    PACK_BLOCK: tl.constexpr,
    LINES: tl.constexpr,
    COLS: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Packs the weights in the first programs and folds the input in the others."""
    job = tl.program_id(0)
    if job < PACK_JOBS:
        pack(job, weight, packed, C, K, R, S, STRIDE_H, STRIDE_W, STEP_W, E, SPAN, TAPS, COLUMNS, PACK_BLOCK)
    else:
        job -= PACK_JOBS
        fold(
            job,
            x,
            folded,
            N,
            C,
            H,
            W,
            STRIDE_H,
            STRIDE_W,
            STEP_W,
            PAD_H,
            PAD_W,
            HD,
            WD,
            E,
            LINES,
            COLS,
            GROUPS,
        )


@triton.jit
def write(out, bias, total, channel, pixel, K: tl.constexpr, PIXELS: tl.constexpr):
    """Writes a tile of sums, plus the bias, clamped at zero, to [pixel][channel] in float16."""
    if bias is not None:
        total += tl.load(bias + channel, mask=channel < K, other=0.0).to(tl.float32)[None, :]
    inside = (pixel < PIXELS)[:, None] & (channel < K)[None, :]
    spot = out + pixel.to(tl.int64)[:, None] * K + channel[None, :]
    total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(spot, total.to(tl.float16), mask=inside)


@triton.jit
def convolve(
    folded,
    packed,
    bias,
    out,
    K: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    PIXELS: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HD: tl.constexpr,
    WD: tl.constexpr,
    E: tl.constexpr,
    SPAN: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program: BLOCK_M output pixels, WIDE + NARROW channels, BLOCK_K taps at a time."""
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    last = tl.minimum(pixel, PIXELS - 1)
    n, p, q = last // (P * Q), last // Q % P, last % Q
    corner = folded + ((n * HD + p) * WD + q).to(tl.int64) * E
    wide = tl.program_id(1) * (WIDE + NARROW) + tl.arange(0, WIDE)
    wide_total = tl.zeros([BLOCK_M, WIDE], tl.float32)
    if NARROW > 0:
        narrow = tl.program_id(1) * (WIDE + NARROW) + WIDE + tl.arange(0, NARROW)
        narrow_total = tl.zeros([BLOCK_M, NARROW], tl.float32)
    for start in range(0, TAPS, BLOCK_K):
        tap = start + tl.arange(0, BLOCK_K)
        # A row of a window is a run of SPAN elements; the next one is one row of folded pixels further.
        window = tl.load(corner[:, None] + (tap + tap // SPAN * (WD * E - SPAN))[None, :])
        part = tl.load(packed + tap[:, None] * COLUMNS + wide[None, :])
        wide_total = tl.dot(window, part, wide_total)
        if NARROW > 0:
            part = tl.load(packed + tap[:, None] * COLUMNS + narrow[None, :])
            narrow_total = tl.dot(window, part, narrow_total)
    write(out, bias, wide_total, wide, pixel, K, PIXELS)
    if NARROW > 0:
        write(out, bias, narrow_total, narrow, pixel, K, PIXELS)


@triton.jit
def pool(
    values,
    out,
    K: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    PP: tl.constexpr,
    PQ: tl.constexpr,
    POOL: tl.constexpr,
    STRIDE: tl.constexpr,
    COLS: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """One program: a row of pooled pixels, CHANNELS channels, which become the outer index."""
    row = tl.program_id(0)
    n = (row // PP).to(tl.int64)
    column = tl.arange(0, COLS)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    inside = (column < PQ)[:, None] & (channel < K)[None, :]
    best = tl.full([COLS, CHANNELS], float("-inf"), tl.float16)
    for i in tl.static_range(POOL):
        for j in tl.static_range(POOL):
            p, q = row % PP * STRIDE + i, column * STRIDE + j
            spot = values + ((n * P + p) * Q + q)[:, None] * K + channel[None, :]
            value = tl.load(spot, mask=inside, other=float("-inf"))
            best = tl.maximum(best, value, propagate_nan=tl.PropagateNan.ALL)
    spot = out + n * (K * PP * PQ) + row % PP * PQ + channel[None, :] * (PP * PQ) + column[:, None]
    tl.store(spot, best.to(tl.float32), mask=inside)


def tile_of(channels: int) -> tuple[int, int]:
    """The widths of the two tiles, powers of two, with which a program covers its output channels: 64 and 32
    for 96, so that no product is wasted and each window is read once. The second may be 0."""
    if channels > 128:
        return 128, 0
    wide = max(16, triton.next_power_of_2(channels + 1) // 2)
    rest = channels - wide
    return wide, max(16, triton.next_power_of_2(rest)) if rest > 0 else 0


def conv2d_relu_maxpool(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    stride: int = 1,
    padding: int = 0,
    pool_size: int = 3,
    pool_stride: int = 2,
) -> torch.Tensor:
    """`F.max_pool2d(F.relu(F.conv2d(...)))` of float32 tensors whose values, and those of the convolution,
    fit in float16 (at most 65504)."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        raise TypeError(f"conv2d of {x.dtype} and {weight.dtype}; both must be float32")
    x, weight = x.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    (n, c, h, w), (k, _, r, s) = x.shape, weight.shape
    p, q = (h + 2 * padding - r) // stride + 1, (w + 2 * padding - s) // stride + 1
    step = triton.next_power_of_2(stride)
    elements = triton.cdiv(c * stride * step, 8) * 8
    span = triton.cdiv(s, stride) * elements
    taps = triton.cdiv(triton.cdiv(r, stride) * span, BLOCK_K) * BLOCK_K
    hd, wd = p - 1 + triton.cdiv(r, stride), q - 1 + triton.cdiv(s, stride)
    wide, narrow = tile_of(k)
    tiles = triton.cdiv(k, wide + narrow)
    columns = tiles * (wide + narrow)
    # The last taps, whose weights are zero, read beyond the last window, so rows of zeros follow it.
    fold_rows = n * hd + triton.cdiv(taps, span) + 1
    cols = triton.next_power_of_2(wd)
    lines = triton.next_power_of_2(triton.cdiv(elements, step))
    lines = min(lines, max(1, FOLD_ELEMENTS // (cols * step)))
    groups = triton.cdiv(elements, lines * step)
    pack_jobs = triton.cdiv(taps * columns, PACK_BLOCK)
    packed = torch.empty(taps * columns, dtype=torch.float16, device=x.device)
    folded = torch.empty(fold_rows * wd * elements, dtype=torch.float16, device=x.device)
    pp, pq = (p - pool_size) // pool_stride + 1, (q - pool_size) // pool_stride + 1
    out = torch.empty((n, k, pp, pq), dtype=x.dtype, device=x.device)
    values = torch.empty((n, p, q, k), dtype=torch.float16, device=x.device)
    prepare[(pack_jobs + fold_rows * groups,)](
        weight,
        packed,
        x,
        folded,
        N=n,
        C=c,
        H=h,
        W=w,
        K=k,
        R=r,
        S=s,
        STRIDE_H=stride,
        STRIDE_W=stride,
        STEP_W=step,
        PAD_H=padding,
        PAD_W=padding,
        HD=hd,
        WD=wd,
        E=elements,
        SPAN=span,
        TAPS=taps,
        COLUMNS=columns,
        PACK_JOBS=pack_jobs,
        PACK_BLOCK=PACK_BLOCK,
        LINES=lines,
        COLS=cols,
        GROUPS=groups,
    )
    convolve[(triton.cdiv(n * p * q, BLOCK_M), tiles)](
        folded,
        packed,
        bias,
        values,
        K=k,
        P=p,
        Q=q,
        PIXELS=n * p * q,
        TAPS=taps,
        COLUMNS=columns,
        HD=hd,
        WD=wd,
        E=elements,
        SPAN=span,
        WIDE=wide,
        NARROW=narrow,
        BLOCK_M=BLOCK_M,
        BLOCK_K=BLOCK_K,
        num_warps=WARPS,
        num_stages=STAGES,
    )
    pool[(n * pp, triton.cdiv(k, POOL_CHANNELS))](
        values,
        out,
        K=k,
        P=p,
        Q=q,
        PP=pp,
        PQ=pq,
        POOL=pool_size,
        STRIDE=pool_stride,
        COLS=triton.next_power_of_2(pq),
        num_warps=POOL_WARPS,
        CHANNELS=POOL_CHANNELS,
    )
    return out


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with `torch.nn.Conv2d(...)` as `conv`, then ReLU and
    `torch.nn.MaxPool2d(3, 2)`."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The pooled convolution."""
        conv = self.conv
        return conv2d_relu_maxpool(x, conv.weight, conv.bias, conv.stride[0], conv.padding[0])
