"""SwiGLU MLP in Triton, down(silu(gate(x)) * up(x)), in two launches.

The first multiplies each tile of x with the same columns of both gate and up, and writes silu(gate) * up: x
is read once for both, and neither product is written to memory. The second is an ordinary product.
Both run one program per multiprocessor, which takes its tiles by TMA. Operands that TMA cannot
describe (rows whose size is not a multiple of 16 bytes) use pointers.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16)
GATED_TILES = ((128, 128, 64, 8, 3), (64, 64, 64, 4, 3))
DOWN_TILES = ((128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (64, 64, 64, 4, 4))
"""Rows and columns of a tile, depth of one step, warps, stages: the first with which every multiprocessor has
a tile, or the last."""
GROUP = 8
"""Rows of tiles that share columns in the L2 cache."""


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
def gated(
    x,
    gate,
    up,
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
    """One program: every PROGRAMS-th tile of silu(x gateᵀ) * (x upᵀ)."""
    ROWS: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    COLUMNS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    for tile in tl.range(tl.program_id(0), ROWS * COLUMNS, PROGRAMS):
        row, column = place_of(tile, ROWS, COLUMNS, BLOCK_M, BLOCK_N, GROUP)
        opened = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        passed = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            left = load_tile(x, row, start, M, K, BLOCK_M, BLOCK_K, TMA)
            right = load_tile(gate, column, start, N, K, BLOCK_N, BLOCK_K, TMA)
            opened = tl.dot(left, right.T, opened)
            right = load_tile(up, column, start, N, K, BLOCK_N, BLOCK_K, TMA)
            passed = tl.dot(left, right.T, passed)
        silu = opened / (1.0 + tl.exp(-opened))
        store_tile(out, row, column, silu * passed, M, N, BLOCK_M, BLOCK_N, TMA)


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
    """One program: every PROGRAMS-th tile of a bᵀ."""
    ROWS: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
    COLUMNS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
    for tile in tl.range(tl.program_id(0), ROWS * COLUMNS, PROGRAMS):
        row, column = place_of(tile, ROWS, COLUMNS, BLOCK_M, BLOCK_N, GROUP)
        total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for start in range(0, K, BLOCK_K):
            left = load_tile(a, row, start, M, K, BLOCK_M, BLOCK_K, TMA)
            right = load_tile(b, column, start, N, K, BLOCK_N, BLOCK_K, TMA)
            total = tl.dot(left, right.T, total)
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


def tile_of(m: int, n: int, device: torch.device, tiles: tuple[tuple[int, ...], ...]) -> dict[str, int]:
    """The arguments that define the tiles of an output [m, n]."""
    programs = processors(device)
    counts = [triton.cdiv(m, tile[0]) * triton.cdiv(n, tile[1]) for tile in tiles]
    which = next((i for i, count in enumerate(counts) if count >= programs), len(tiles) - 1)
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages")
    chosen = dict(zip(names, tiles[which], strict=True))
    return chosen | {"GROUP": GROUP, "PROGRAMS": min(counts[which], programs)}


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """down(silu(gate(x)) * up(x)) of x [..., features] with the weights of three linear layers without bias:
    gate and up [hidden, features], down [features out, hidden]; all float16 or all bfloat16."""
    if x.dtype not in DTYPES or any(weight.dtype != x.dtype for weight in (gate, up, down)):
        raise TypeError(f"SwiGLU of {x.dtype} with {gate.dtype}; all must be float16, or all bfloat16")
    shape = x.shape
    x = x.reshape(-1, shape[-1]).contiguous()
    gate, up, down = gate.contiguous(), up.contiguous(), down.contiguous()
    (m, k), n, width = x.shape, gate.shape[0], down.shape[0]
    hidden = torch.empty((m, n), dtype=x.dtype, device=x.device)
    out = torch.empty((m, width), dtype=x.dtype, device=x.device)
    if out.numel() == 0:
        return out.view(*shape[:-1], width)
    aligned = all(each.data_ptr() % 16 == 0 for each in (x, gate, up, down))
    tma = aligned and k % 8 == n % 8 == width % 8 == 0
    cut = tile_of(m, n, x.device, GATED_TILES)
    rows, columns, depth = cut["BLOCK_M"], cut["BLOCK_N"], cut["BLOCK_K"]
    operands = describe(
        tma,
        x=(x, [rows, depth]),
        gate=(gate, [columns, depth]),
        up=(up, [columns, depth]),
        out=(hidden, [rows, columns]),
    )
    gated[(cut["PROGRAMS"],)](**operands, **cut, M=m, N=n, K=k, TMA=tma)
    cut = tile_of(m, width, x.device, DOWN_TILES)
    rows, columns, depth = cut["BLOCK_M"], cut["BLOCK_N"], cut["BLOCK_K"]
    operands = describe(
        tma, a=(hidden, [rows, depth]), b=(down, [columns, depth]), out=(out, [rows, columns])
    )
    multiply[(cut["PROGRAMS"],)](**operands, **cut, M=m, N=width, K=n, TMA=tma)
    return out.view(*shape[:-1], width)


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with linear layers `gate`, `up` and `down`, without bias."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.gate = torch.nn.Linear(features, hidden, bias=False)
        self.up = torch.nn.Linear(features, hidden, bias=False)
        self.down = torch.nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The MLP."""
        return swiglu(x, self.gate.weight, self.up.weight, self.down.weight)
