"""Matrix product of half-precision operands in Triton: tiles by TMA, one program per multiprocessor.

A program computes several output tiles in sequence, in groups of rows that share columns in the L2 cache;
the copies of the next tile's operands run while this one is written. Operands that TMA cannot describe (rows
whose size is not a multiple of 16 bytes) use pointers.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16)
TILES = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 64, 64, 4, 4))
"""Rows and columns of a tile, depth of one step, warps, stages: the first with which every multiprocessor has
a tile, or the last."""
GROUP = 4
"""Rows of tiles that share columns."""


@triton.jit
def place_of(
    tile,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    GROUP: tl.constexpr,
):
    """First row and first column of a tile, of ROWS x COLUMNS tiles in all."""
    first = tile // (GROUP * COLUMNS) * GROUP
    height = tl.minimum(GROUP, ROWS - first)
    within = tile % (GROUP * COLUMNS)
    return (first + within % height) * BLOCK_M, within // height * BLOCK_N


@triton.jit
def load_tile(
    x,
    row,
    column,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TMA: tl.constexpr,
):
    """ROWS x COLUMNS elements of x [HEIGHT][WIDTH], zeros beyond its end."""
    if TMA:
        tile = x.load([row, column])
    else:
        r, c = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        tile = tl.load(x + r.to(tl.int64) * WIDTH + c, mask=(r < HEIGHT) & (c < WIDTH), other=0.0)
    return tile


@triton.jit
def store_tile(
    x,
    row,
    column,
    tile,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TMA: tl.constexpr,
):
    """Writes ROWS x COLUMNS elements to x [HEIGHT][WIDTH], none beyond its end."""
    if TMA:
        x.store([row, column], tile.to(x.dtype))
    else:
        r, c = row + tl.arange(0, ROWS)[:, None], column + tl.arange(0, COLUMNS)[None, :]
        spot = x + r.to(tl.int64) * WIDTH + c
        tl.store(spot, tile.to(x.dtype.element_ty), mask=(r < HEIGHT) & (c < WIDTH))


@triton.jit
def multiply(
    a,
    b,
    out,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    PROGRAMS: tl.constexpr,
    TMA: tl.constexpr,
):
    """One program: every PROGRAMS-th tile of the output."""
    ROWS: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    COLUMNS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    for tile in tl.range(tl.program_id(0), ROWS * COLUMNS, PROGRAMS, flatten=True):
        row, column = place_of(tile, ROWS, COLUMNS, BLOCK_M, BLOCK_N, GROUP)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            left = load_tile(a, row, start, M, K, BLOCK_M, BLOCK_K, TMA)
            right = load_tile(b, start, column, K, N, BLOCK_K, BLOCK_N, TMA)
            total = tl.dot(left, right, total)
        store_tile(out, row, column, total, M, N, BLOCK_M, BLOCK_N, TMA)


@functools.cache
def processors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; a few for the interpreter on a CPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def describe(tma: bool, **tiles: tuple[torch.Tensor, list[int]]) -> dict[str, object]:
    """Each tensor by name, as a descriptor of its tiles or unchanged."""
    return {
        name: TensorDescriptor.from_tensor(tensor, shape) if tma else tensor
        for name, (tensor, shape) in tiles.items()
    }


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N], both float16 or both bfloat16; sums in float32."""
    if a.dtype not in DTYPES or b.dtype != a.dtype:
        raise TypeError(f"matmul of {a.dtype} and {b.dtype}; both must be float16, or both bfloat16")
    a, b = a.contiguous(), b.contiguous()
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if out.numel() == 0:
        return out
    programs = processors(a.device)
    counts = [triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]) for tile in TILES]
    which = next((i for i, count in enumerate(counts) if count >= programs), len(TILES) - 1)
    block_m, block_n, block_k, warps, stages = TILES[which]
    tma = k > 0 and k % 8 == n % 8 == 0 and a.data_ptr() % 16 == b.data_ptr() % 16 == 0
    programs = min(counts[which], programs)
    operands = describe(
        tma, a=(a, [block_m, block_k]), b=(b, [block_k, block_n]), out=(out, [block_m, block_n])
    )
    multiply[(programs,)](
        **operands,
        M=m,
        N=n,
        K=k,
        BLOCK_M=block_m,
        BLOCK_N=block_n,
        BLOCK_K=block_k,
        GROUP=GROUP,
        PROGRAMS=programs,
        TMA=tma,
        num_warps=warps,
        num_stages=stages,
    )
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `matmul`."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The matrix product."""
        return matmul(a, b)
