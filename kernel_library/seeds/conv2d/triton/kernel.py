"""2-D convolution in Triton: an implicit GEMM of output pixels by channels on the tensor cores.

The input gets a border of zeros and its channels innermost; with few channels, the stride is folded into
them: stride x stride pixels become the channels of one. Each row of a window is then one contiguous run that
loads by 16 bytes without masks. Sums are in float32, and float32 inputs are rounded to float16: for
tolerances of about 1e-3.
"""

# How the embedded playbook calls this design, so that it goes on from here:
# playbook: {"op": "conv2d", "language": "triton", "knobs": {"algorithm": "gemm", "block_k": 64, "block_m": 128, "block_n": 128, "channels": 1, "columns": "exact", "fuse": "none", "index": "divide", "input": "depth", "launches": "merged", "order": "packed", "precision": "fp16", "resident": false, "stages": 3, "warps": 8, "weights": "packed"}}

import math

import torch
import triton
import triton.language as tl

INSIDE = {torch.float32: torch.float16, torch.float16: torch.float16, torch.bfloat16: torch.bfloat16}
"""What is multiplied, by the type of the input."""
BLOCK_M = 128
"""Pixels of a tile."""
NARROW_SHAPE, WIDE_SHAPE = (64, 8, 3), (32, 4, 4)
"""Taps of a step, warps and stages, for tiles of fewer channels than 128 and for others: on an H100 64 x 64 x
56 x 56 by 64 windows of 3 x 3 took 0.0696 ms in float16, 0.0713 as the others; 64 x 128 x 28 x 28 by 128 took
0.0409, and 0.0464 as those of few channels."""
PACK_TAPS, PACK_CHANNELS, FOLD_ELEMENTS = 128, 64, 8192
"""Weights of a program that packs them, for each channel of the output, and of how many of these; elements at
most of a program that folds."""


@triton.jit
def pack(
    job,
    weight,
    packed,
    C: tl.constexpr,
    K: tl.constexpr,
    R: tl.constexpr,
    S: tl.constexpr,
    FOLD_H: tl.constexpr,
    FOLD_W: tl.constexpr,
    STEP_W: tl.constexpr,
    SKIP: tl.constexpr,
    E: tl.constexpr,
    SPAN: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW_W: tl.constexpr,
    PACK_TAPS: tl.constexpr,
    PACK_CHANNELS: tl.constexpr,
):
    """Packs weights into [TAPS][COLUMNS], in the order of the folded input, with zeros around: of
    PACK_CHANNELS of the output, PACK_TAPS in their order in memory. Windows have ROWS x WINDOW_W pixels, and
    no weights in their first SKIP columns."""
    GROUPS: tl.constexpr = (COLUMNS + PACK_CHANNELS - 1) // PACK_CHANNELS
    channel = job % GROUPS * PACK_CHANNELS + tl.arange(0, PACK_CHANNELS)
    place = job // GROUPS * PACK_TAPS + tl.arange(0, PACK_TAPS)
    c, r, s = place // (ROWS * WINDOW_W), place // WINDOW_W % ROWS, place % WINDOW_W
    element = (c * FOLD_H + r % FOLD_H) * STEP_W + s % STEP_W
    tap = r // FOLD_H * SPAN + s // STEP_W * E + element
    s = s // STEP_W * FOLD_W + s % STEP_W - SKIP
    used = (c < C) & (r < R) & (s >= 0) & (s < S) & (place % STEP_W < FOLD_W)
    source = weight + (c * R + r) * S + s
    used = (channel < K)[:, None] & used[None, :]
    value = tl.load(source[None, :] + channel[:, None] * (C * R * S), mask=used, other=0.0)
    inside = (channel < COLUMNS)[:, None] & ((element < E) & (tap < TAPS))[None, :]
    target = packed + tap[None, :] * COLUMNS + channel[:, None]
    tl.store(target, value.to(packed.dtype.element_ty), mask=inside)


@triton.jit
def fold(
    job,
    x,
    folded,
    N: tl.constexpr,
    C: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    FOLD_H: tl.constexpr,
    FOLD_W: tl.constexpr,
    STEP_W: tl.constexpr,
    PAD_H: tl.constexpr,
    FIRST_W: tl.constexpr,
    LEFT: tl.constexpr,
    HD: tl.constexpr,
    WD: tl.constexpr,
    E: tl.constexpr,
    LINES: tl.constexpr,
    COLS: tl.constexpr,
    BORDER: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """One row of folded pixels, or a group of its elements: FOLD_H rows of the input, interleaved. COLS
    columns are read from column FIRST_W of the input on, and LEFT columns of zeros lie before them."""
    WIDTH: tl.constexpr = LINES * STEP_W
    row, group = job // GROUPS, job % GROUPS
    n = row // HD
    line = group * LINES + tl.arange(0, LINES)
    c = line // FOLD_H
    h = row % HD * FOLD_H + line % FOLD_H - PAD_H
    flat = tl.arange(0, COLS * STEP_W)
    w = flat + FIRST_W
    if STEP_W != FOLD_W:
        w = tl.where(flat % STEP_W < FOLD_W, flat // STEP_W * FOLD_W + flat % STEP_W + FIRST_W, W)
    channels = tl.where(n < N, C, 0)
    known = ((c < channels) & (h >= 0) & (h < H))[:, None] & ((w >= 0) & (w < W))[None, :]
    source = x + n.to(tl.int64) * (C * H * W) + (c * H + h) * W
    value = tl.load(source[:, None] + w[None, :], mask=known, other=0.0).to(folded.dtype.element_ty)
    value = value.reshape(LINES, COLS, STEP_W).permute(1, 0, 2).reshape(COLS, WIDTH)
    column = LEFT + tl.arange(0, COLS)
    element = group * WIDTH + tl.arange(0, WIDTH)
    line_of = folded + row.to(tl.int64) * (WD * E) + element[None, :]
    tl.store(line_of + column[:, None] * E, value, mask=(column < WD)[:, None] & (element < E)[None, :])
    if BORDER > 0:
        number = tl.arange(0, BORDER)
        column = tl.where(number < LEFT, number, number + COLS)
        edge = tl.zeros([BORDER, WIDTH], folded.dtype.element_ty)
        tl.store(line_of + column[:, None] * E, edge, mask=(column < WD)[:, None] & (element < E)[None, :])


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
    FOLD_H: tl.constexpr,
    FOLD_W: tl.constexpr,
    STEP_W: tl.constexpr,
    SKIP: tl.constexpr,
    ROWS: tl.constexpr,
    WINDOW_W: tl.constexpr,
    PAD_H: tl.constexpr,
    FIRST_W: tl.constexpr,
    LEFT: tl.constexpr,
    HD: tl.constexpr,
    WD: tl.constexpr,
    E: tl.constexpr,
    SPAN: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PACK_JOBS: tl.constexpr,
    PACK_TAPS: tl.constexpr,
    PACK_CHANNELS: tl.constexpr,
    LINES: tl.constexpr,
    COLS: tl.constexpr,
    BORDER: tl.constexpr,
    GROUPS: tl.constexpr,
):
    """Packs the weights in the first programs and folds the input in the others."""
    job = tl.program_id(0)
    if job < PACK_JOBS:
        pack(
            job,
            weight,
            packed,
            C,
            K,
            R,
            S,
            FOLD_H,
            FOLD_W,
            STEP_W,
            SKIP,
            E,
            SPAN,
            TAPS,
            COLUMNS,
            ROWS,
            WINDOW_W,
            PACK_TAPS,
            PACK_CHANNELS,
        )
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
            FOLD_H,
            FOLD_W,
            STEP_W,
            PAD_H,
            FIRST_W,
            LEFT,
            HD,
            WD,
            E,
            LINES,
            COLS,
            BORDER,
            GROUPS,
        )


@triton.jit
def write(out, bias, total, channel, pixel, spot, K: tl.constexpr, AREA: tl.constexpr, PIXELS: tl.constexpr):
    """Writes a tile of sums, plus the bias, to its place in [N][K][AREA]."""
    if bias is not None:
        total += tl.load(bias + channel, mask=channel < K, other=0.0).to(tl.float32)[None, :]
    inside = (pixel < PIXELS)[:, None] & (channel < K)[None, :]
    tl.store(out + spot[:, None] + channel[None, :] * AREA, total.to(out.dtype.element_ty), mask=inside)


@triton.jit
def convolve(
    folded,
    packed,
    bias,
    out,
    K: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    STEP: tl.constexpr,
    PIXELS: tl.constexpr,
    TAPS: tl.constexpr,
    COLUMNS: tl.constexpr,
    HD: tl.constexpr,
    WD: tl.constexpr,
    E: tl.constexpr,
    SPAN: tl.constexpr,
    WIDE: tl.constexpr,
    NARROW: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """One program: BLOCK_M output pixels, WIDE + NARROW channels, BLOCK_K taps at a time. TOGETHER pixels
    belong to one image, from any first pixel."""
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    last = tl.minimum(pixel, PIXELS - 1)
    n, p, q = last // (P * Q), last // Q % P, last % Q
    spot = n.to(tl.int64) * (K * P * Q) + last % (P * Q)
    spot = tl.max_contiguous(tl.multiple_of(spot, TOGETHER), TOGETHER)
    corner = folded + ((n * HD + p * STEP) * WD + q * STEP).to(tl.int64) * E
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
    write(out, bias, wide_total, wide, pixel, spot, K, P * Q, PIXELS)
    if NARROW > 0:
        write(out, bias, narrow_total, narrow, pixel, spot, K, P * Q, PIXELS)


def tile_of(channels: int) -> tuple[int, int]:
    """The widths of the two tiles, powers of two, with which a program covers its output channels: 64 and 32
    for 96, so that no product is wasted and each window is read once. The second may be 0."""
    if channels > 128:
        return 128, 0
    wide = max(16, triton.next_power_of_2(channels + 1) // 2)
    rest = channels - wide
    return wide, max(16, triton.next_power_of_2(rest)) if rest > 0 else 0


def elements_of(channels: int, fold: int) -> int:
    """The size of a folded pixel: fold x fold pixels, whose columns are padded to a power of two and a
    multiple of 16 bytes."""
    return triton.cdiv(channels * fold * triton.next_power_of_2(fold), 8) * 8


def taps_of(channels: int, height: int, width: int, fold: int) -> int:
    """Of a window over folded pixels."""
    return triton.cdiv(height, fold) * triton.cdiv(width, fold) * elements_of(channels, fold)


def conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int = 1, padding: int = 0
) -> torch.Tensor:
    """`F.conv2d` of tensors of one type: float16, bfloat16, or float32 whose values fit in float16 (at most
    65504)."""
    if x.dtype not in INSIDE or weight.dtype != x.dtype:
        names = ", ".join(map(str, INSIDE))
        raise TypeError(f"conv2d of {x.dtype} and {weight.dtype}; both must be one of {names}")
    x, weight = x.contiguous(), weight.contiguous()
    bias = None if bias is None else bias.contiguous()
    (n, c, h, w), (k, _, r, s) = x.shape, weight.shape
    p, q = (h + 2 * padding - r) // stride + 1, (w + 2 * padding - s) // stride + 1
    # With few channels, pixels are folded by the stride; with more, a window is contiguous without that.
    fold = min((1, stride), key=lambda fold: taps_of(c, r, s, fold))
    step = triton.next_power_of_2(fold)
    elements = elements_of(c, fold)
    # Rows are read from their first pixel on, so by 16 bytes, where a window then has no more columns.
    aligned = step == fold and triton.cdiv(-padding % fold + s, fold) == triton.cdiv(s, fold)
    skip = -padding % fold if aligned else 0
    left = (padding + skip) // fold if aligned else 0
    span = triton.cdiv(s, fold) * elements
    wide, narrow = tile_of(k)
    few, many = NARROW_SHAPE[0], WIDE_SHAPE[0]
    taps = taps_of(c, r, s, fold)
    is_narrow = wide + narrow < 128 and triton.cdiv(taps, few) * few <= 1.1 * triton.cdiv(taps, many) * many
    block_k, warps, stages = NARROW_SHAPE if is_narrow else WIDE_SHAPE
    taps = triton.cdiv(taps, block_k) * block_k
    rows = triton.cdiv(taps, span)
    hd = (p - 1) * (stride // fold) + triton.cdiv(r, fold)
    wd = (q - 1) * (stride // fold) + triton.cdiv(s, fold)
    tiles = triton.cdiv(k, wide + narrow)
    columns = tiles * (wide + narrow)
    # The last taps, whose weights are zero, read beyond the last window, so rows of zeros follow it.
    fold_rows = n * hd + rows + 1
    cols = triton.next_power_of_2(triton.cdiv(w, fold) if aligned else wd)
    border = left + max(0, wd - left - cols)
    lines = triton.next_power_of_2(triton.cdiv(elements, step))
    lines = min(lines, max(1, FOLD_ELEMENTS // (cols * step)))
    groups = triton.cdiv(elements, lines * step)
    window_w = triton.cdiv(s, fold) * step
    places = triton.cdiv(elements, fold * step) * rows * fold * window_w
    pack_jobs = triton.cdiv(places, PACK_TAPS) * triton.cdiv(columns, PACK_CHANNELS)
    inside = INSIDE[x.dtype]
    packed = torch.empty(taps * columns, dtype=inside, device=x.device)
    folded = torch.empty(fold_rows * wd * elements, dtype=inside, device=x.device)
    out = torch.empty((n, k, p, q), dtype=x.dtype, device=x.device)
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
        FOLD_H=fold,
        FOLD_W=fold,
        STEP_W=step,
        SKIP=skip,
        ROWS=rows * fold,
        WINDOW_W=window_w,
        PAD_H=padding,
        FIRST_W=0 if aligned else -padding,
        LEFT=left,
        HD=hd,
        WD=wd,
        E=elements,
        SPAN=span,
        TAPS=taps,
        COLUMNS=columns,
        PACK_JOBS=pack_jobs,
        PACK_TAPS=PACK_TAPS,
        PACK_CHANNELS=PACK_CHANNELS,
        LINES=lines,
        COLS=cols,
        BORDER=triton.next_power_of_2(border) if border else 0,
        GROUPS=groups,
    )
    convolve[(triton.cdiv(n * p * q, BLOCK_M), tiles)](
        folded,
        packed,
        bias,
        out,
        K=k,
        P=p,
        Q=q,
        STEP=stride // fold,
        PIXELS=n * p * q,
        TAPS=taps,
        COLUMNS=columns,
        HD=hd,
        WD=wd,
        E=elements,
        SPAN=span,
        WIDE=wide,
        NARROW=narrow,
        TOGETHER=math.gcd(p * q, 8),
        BLOCK_M=BLOCK_M,
        BLOCK_K=block_k,
        num_warps=warps,
        num_stages=stages,
    )
    return out


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with `torch.nn.Conv2d(...)` as `conv`."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution."""
        conv = self.conv
        return conv2d(x, conv.weight, conv.bias, conv.stride[0], conv.padding[0])
