"""Matrix product of half-precision operands in Gluon, for whole tiles on compute capability 9.0.

Warp-specialised (Bauer, Cook, Khailany: "CudaDMA", 2011): one warp loads by TMA and runs ahead by STAGES
steps, even across tiles; two warpgroups multiply. Each has 64 rows of a 128 x 256 tile and waits only for the
loads, not for the other one, so that one of them multiplies while the other writes its rows. A program
computes its tiles in groups of rows that share columns in the L2 cache.

As fast as cuBLAS: 4096 x 4096 x 4096 in float16 takes 0.179 ms on an H200, cuBLAS 0.180 ms.
"""

import functools

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

DTYPES = (torch.float16, torch.bfloat16)
HALF, WIDTH, DEPTH = 64, 256, 64
"""Rows per warpgroup (a tile has two); columns of a tile; depth of a step."""
STAGES = 3
"""Steps in flight. Rows written whole leave room for three (0.1792 ms at 4096 x 4096 x 4096 in float16 on an
H200); written by halves there is room for four, which gains nothing (0.1803 ms)."""
GROUP = 8
"""Rows of tiles that share columns; 4, 12 and 16 differ by less than the measurements do."""


@gluon.jit
def place_of(tile, ROWS: gl.constexpr, COLUMNS: gl.constexpr, GROUP: gl.constexpr):
    """Row and column of a tile, counted in tiles."""
    first = tile // (GROUP * COLUMNS) * GROUP
    height = gl.minimum(GROUP, ROWS - first)
    within = tile % (GROUP * COLUMNS)
    return first + within % height, within // height


@gluon.jit
def load(
    a,
    b,
    left,
    right,
    free,
    ready,
    K: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    GROUP: gl.constexpr,
):
    """The loading warp: each step's operands into a slot that both warpgroups have freed."""
    HALF: gl.constexpr = a.block_type.shape[0]
    DEPTH: gl.constexpr = b.block_type.shape[0]
    WIDTH: gl.constexpr = b.block_type.shape[1]
    STAGES: gl.constexpr = right.type.shape[0]
    step = 0
    for tile in range(gl.program_id(0), ROWS * COLUMNS, gl.num_programs(0)):
        tile_row, tile_column = place_of(tile, ROWS, COLUMNS, GROUP)
        row, column = tile_row * (2 * HALF), tile_column * WIDTH
        for start in range(0, K, DEPTH):
            slot = step % STAGES
            mbarrier.wait(free.index(slot), (step // STAGES & 1) ^ 1)
            bar = ready.index(slot)
            mbarrier.expect(bar, 2 * a.block_type.nbytes + b.block_type.nbytes)
            tma.async_copy_global_to_shared(a, [row, start], bar, left.index(2 * slot))
            tma.async_copy_global_to_shared(a, [row + HALF, start], bar, left.index(2 * slot + 1))
            tma.async_copy_global_to_shared(b, [start, column], bar, right.index(slot))
            step += 1


@gluon.jit
def multiply_rows(
    out,
    left,
    right,
    written,
    free,
    ready,
    WHICH: gl.constexpr,
    K: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    GROUP: gl.constexpr,
):
    """One warpgroup: computes the upper (WHICH 0) or lower rows of each tile."""
    STAGES: gl.constexpr = right.type.shape[0]
    DEPTH: gl.constexpr = right.type.shape[1]
    HALF: gl.constexpr = written.type.shape[1]
    WIDTH: gl.constexpr = written.type.shape[2]
    layout: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, WIDTH, 16]
    )
    target = written.index(WHICH)
    step = 0
    for tile in range(gl.program_id(0), ROWS * COLUMNS, gl.num_programs(0)):
        tile_row, tile_column = place_of(tile, ROWS, COLUMNS, GROUP)
        row, column = tile_row * (2 * HALF) + WHICH * HALF, tile_column * WIDTH
        total = gl.zeros([HALF, WIDTH], gl.float32, layout)
        for start in range(0, K, DEPTH):
            slot = step % STAGES
            mbarrier.wait(ready.index(slot), step // STAGES & 1)
            total = warpgroup_mma(
                left.index(2 * slot + WHICH), right.index(slot), total, use_acc=start > 0, is_async=True
            )
            # One step stays in flight: the slot of the step before it is free.
            total = warpgroup_mma_wait(1, (total,))
            mbarrier.arrive(free.index((step + STAGES - 1) % STAGES), pred=start > 0)
            step += 1
        total = warpgroup_mma_wait(0, (total,))
        mbarrier.arrive(free.index((step + STAGES - 1) % STAGES))
        values = total.to(out.dtype)
        tma.store_wait(0)
        target.store(values)
        fence_async_shared()
        tma.async_copy_shared_to_global(out, [row, column], target)
    tma.store_wait(0)


@gluon.jit
def multiply(
    a,
    b,
    out,
    K: gl.constexpr,
    ROWS: gl.constexpr,
    COLUMNS: gl.constexpr,
    GROUP: gl.constexpr,
    STAGES: gl.constexpr,
):
    """One program, which computes its share of the ROWS x COLUMNS output tiles."""
    HALF: gl.constexpr = a.block_type.shape[0]
    DEPTH: gl.constexpr = b.block_type.shape[0]
    WIDTH: gl.constexpr = b.block_type.shape[1]
    left = gl.allocate_shared_memory(a.dtype, [2 * STAGES, HALF, DEPTH], a.layout)
    right = gl.allocate_shared_memory(b.dtype, [STAGES, DEPTH, WIDTH], b.layout)
    written = gl.allocate_shared_memory(out.dtype, [2, HALF, WIDTH], out.layout)
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for slot in gl.static_range(STAGES):
        mbarrier.init(free.index(slot), count=2)
        mbarrier.init(ready.index(slot), count=1)
    fence_async_shared()  # TMA uses these barriers.
    gl.warp_specialize(
        [
            (multiply_rows, (out, left, right, written, free, ready, 0, K, ROWS, COLUMNS, GROUP)),
            (multiply_rows, (out, left, right, written, free, ready, 1, K, ROWS, COLUMNS, GROUP)),
            (load, (a, b, left, right, free, ready, K, ROWS, COLUMNS, GROUP)),
        ],
        [4, 1],
        [240, 24],
    )


@functools.cache
def processors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def packed(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without gaps, at an address that TMA supports; copied only if needed."""
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def describe(tensor: torch.Tensor, block: list[int]) -> TensorDescriptor:
    """A descriptor of tiles, swizzled for the tensor cores."""
    kind = gl.float16 if tensor.dtype == torch.float16 else gl.bfloat16
    return TensorDescriptor.from_tensor(tensor, block, gl.NVMMASharedLayout.get_default_for(block, kind))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N], both float16 or both bfloat16; sums in float32.

    Raises ValueError unless M is a multiple of 128, N of 256 and K of 64.
    """
    if a.dtype not in DTYPES or b.dtype != a.dtype:
        raise TypeError(f"matmul of {a.dtype} and {b.dtype}; both must be float16, or both bfloat16")
    fit = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0]
    if not fit or a.shape[0] % (2 * HALF) or b.shape[1] % WIDTH or a.shape[1] % DEPTH:
        sizes = f"matmul of {tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"{sizes}; made for [M, K] and [K, N], M a multiple of 128, N of 256, K of 64")
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty((m, n), dtype=a.dtype, device=a.device)
    if 0 in (m, n, k):
        return out.zero_()
    rows, columns = m // (2 * HALF), n // WIDTH
    multiply[(min(rows * columns, processors(a.device)),)](
        describe(packed(a), [HALF, DEPTH]),
        describe(packed(b), [DEPTH, WIDTH]),
        describe(out, [HALF, WIDTH]),
        K=k,
        ROWS=rows,
        COLUMNS=columns,
        GROUP=GROUP,
        STAGES=STAGES,
        num_warps=4,
        maxnreg=168,
    )
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `matmul`."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The matrix product."""
        return matmul(a, b)
