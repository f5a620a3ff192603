"""2-D convolution in Triton: an implicit GEMM of output pixels by channels on the tensor cores.

The input is folded by the stride: stride x stride pixels become channels, innermost, with a border of zeros.
The convolution then has stride 1, and each row of a window is one contiguous run that loads by 16 bytes
without masks. Sums are in float32, and float32 inputs are rounded to float16: for tolerances of about 1e-3.
"""

# How the embedded playbook calls this design, so that it goes on from here:
# playbook: {"op": "conv2d", "language": "triton", "knobs": {"algorithm": "gemm", "block_k": 64, "block_m": 128, "block_n": 128, "channels": 1, "columns": "exact", "fuse": "none", "index": "divide", "input": "depth", "launches": "merged", "order": "packed", "precision": "fp16", "resident": false, "stages": 3, "warps": 8, "weights": "packed"}}

import torch
import triton
import triton.language as tl

INSIDE = {torch.float32: torch.float16, torch.float16: torch.float16, torch.bfloat16: torch.bfloat16}
"""What is multiplied, by the type of the input."""
BLOCK_M, BLOCK_K, WARPS, STAGES = 128, 64, 8, 3
"""Pixels of a tile and taps of one step."""
PACK_BLOCK, FOLD_ELEMENTS = 1024, 8192
"""Elements of a program that packs weights, and at most of one that folds."""


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
    """Weights to [TAPS][COLUMNS], in the order of the folded input, with zeros around."""
    place = job * BLOCK + tl.arange(0, BLOCK)
    tap, channel = place // COLUMNS, place % COLUMNS
    element, within = tap % E, tap % E % STEP_W
    r = tap // SPAN * STRIDE_H + element // STEP_W % STRIDE_H
    s = tap % SPAN // E * STRIDE_W + within
    c = element // (STEP_W * STRIDE_H)
    used = (channel < K) & (c < C) & (r < R) & (s < S) & (within < STRIDE_W)
    value = tl.load(weight + ((channel * C + c) * R + r) * S + s, mask=used, other=0.0)
    tl.store(packed + place, value.to(packed.dtype.element_ty), mask=tap < TAPS)


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
    value = tl.load(source[:, None] + w[None, :], mask=known, other=0.0).to(folded.dtype.element_ty)
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
    """The first programs pack the weights, the others fold the input."""
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
def write(
    out,
    bias,
    total,
    channel,
    pixel,
    n,
    p,
    q,
    K: tl.constexpr,
    P: tl.constexpr,
    Q: tl.constexpr,
    PIXELS: tl.constexpr,
):
    """A tile of sums, plus the bias, to where it belongs in [N][K][P][Q]."""
    if bias is not None:
        total += tl.load(bias + channel, mask=channel < K, other=0.0).to(tl.float32)[None, :]
    target = out + n.to(tl.int64) * (K * P * Q) + p * Q + q
    inside = (pixel < PIXELS)[:, None] & (channel < K)[None, :]
    tl.store(target[:, None] + channel[None, :] * (P * Q), total, mask=inside)


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
        # A row of a window is one run of SPAN elements; the next one lies a row of folded pixels further.
        window = tl.load(corner[:, None] + (tap + tap // SPAN * (WD * E - SPAN))[None, :])
        part = tl.load(packed + tap[:, None] * COLUMNS + wide[None, :])
        wide_total = tl.dot(window, part, wide_total)
        if NARROW > 0:
            part = tl.load(packed + tap[:, None] * COLUMNS + narrow[None, :])
            narrow_total = tl.dot(window, part, narrow_total)
    write(out, bias, wide_total, wide, pixel, n, p, q, K, P, Q, PIXELS)
    if NARROW > 0:
        write(out, bias, narrow_total, narrow, pixel, n, p, q, K, P, Q, PIXELS)


def tile_of(channels: int) -> tuple[int, int]:
    """Widths of the two tiles, powers of two, by which a program covers its output channels: 64 and 32 for
    96, so that no product is wasted and each window is read once; the second may be 0."""
    if channels > 128:
        return 128, 0
    wide = max(16, triton.next_power_of_2(channels + 1) // 2)
    rest = channels - wide
    return wide, max(16, triton.next_power_of_2(rest)) if rest > 0 else 0


def conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int = 1, padding: int = 0
) -> torch.Tensor:
    """`F.conv2d` of tensors of one type: float16, bfloat16, or float32 whose values float16 can hold (65504 at
    most)."""
    if x.dtype not in INSIDE or weight.dtype != x.dtype:
        names = ", ".join(map(str, INSIDE))
        raise TypeError(f"conv2d of {x.dtype} and {weight.dtype}; both must be one of {names}")
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
    # The last taps, whose weights are zero, read behind the last window: there must be rows of zeros.
    fold_rows = n * hd + triton.cdiv(taps, span) + 1
    cols = triton.next_power_of_2(wd)
    lines = triton.next_power_of_2(triton.cdiv(elements, step))
    lines = min(lines, max(1, FOLD_ELEMENTS // (cols * step)))
    groups = triton.cdiv(elements, lines * step)
    pack_jobs = triton.cdiv(taps * columns, PACK_BLOCK)
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
        out,
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
