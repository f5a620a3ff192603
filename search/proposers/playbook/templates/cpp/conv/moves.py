"""The moves for convolutions in C++."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from search.proposers.playbook.move import Knob, Knobs, Move
from search.proposers.playbook.templates.cpp import machine, pieces
from search.proposers.playbook.templates.cpp.conv.plan import bordered, has_pool, has_relu
from search.proposers.playbook.templates.operator_moves import OPTIMISER
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

FAST = pieces.FAST


def _bf16_allowed(workload: Workload, knobs: Knobs) -> bool:
    return "bfloat16" in workload.lower and machine.has("avx512_bf16")


def _rounds_up(workload: Workload, knobs: Knobs) -> bool:
    return workload.sizes["dilation_w"] == 1 and _bf16_allowed(workload, knobs)


def _checks_tiles(workload: Workload, knobs: Knobs) -> bool:
    """Bounds checks cost most when every pixel of a tile has one between its multiply-adds."""
    return bordered(workload, knobs) and int(knobs["tile_q"]) > 1


ROWS: Mapping[str, tuple[str, ...]] = {"algorithm": ("direct", "im2col")}
REORDER = FAST + " -fassociative-math -fno-signed-zeros -fno-trapping-math -fno-math-errno"
"""Not -ffast-math: g++ 12 links start-up code with it that flushes denormals in the whole process."""
TILED: Mapping[str, tuple[Knob, ...]] = {**ROWS, "flags": (FAST, REORDER)}

MOVES = (
    Move(
        name="threads",
        text="Spread the work over all cores with OpenMP: images and output channels are independent, so "
        "the speedup is the number of cores.",
        category=Category.PARALLELISM,
        gain=1.9,
        sets={"threads": True},
    ),
    replace(OPTIMISER, needs={"algorithm": ("loops",), **OPTIMISER.needs}),
    replace(
        OPTIMISER,
        name="native vectors",
        text="Compile with -O3 -march=native: the vectors become this machine's widest registers, with fused "
        "multiply-adds, and the sums stay in them.",
        gain=6.0,
        needs={**ROWS, **OPTIMISER.needs},
    ),
    Move(
        name="reordered sums",
        text="Add -fassociative-math and what it needs, so that the compiler may reorder the sums of the "
        "reduction and vectorise it.",
        category=Category.PRECISION,
        gain=1.05,
        needs={"flags": (FAST,)},
        sets={"flags": REORDER},
    ),
    Move(
        name="constant sizes",
        text="Make all sizes compile-time constants, so that loops have known trip counts, addresses fold "
        "into the instructions and small loops unroll.",
        category=Category.CONTROL_FLOW,
        gain=1.2,
        sets={"constants": True},
    ),
    Move(
        name="channels innermost",
        text="Repack the weights to [C][R][S][K] and let the innermost loop run over output channels: "
        "contiguous vector loads of weights times one broadcast pixel, instead of a scalar "
        "reduction.",
        category=Category.MEMORY,
        gain=8.0,
        needs={"algorithm": ("loops",)},
        sets={"algorithm": "direct"},
        varies={"tile_k": (2, 3, 1, 6), "tile_q": (1, 2, 4)},
    ),
    Move(
        name="register tile",
        text="Keep a tile of neighbouring output pixels by channel vectors in registers over the whole "
        "window: each weight vector is loaded once for all pixels of the tile, and enough independent"
        " sums are in flight to hide the latency of the multiply-adds.",
        category=Category.COMPUTE,
        gain=1.8,
        needs=TILED,
        varies={"tile_k": (3, 2, 6, 1), "tile_q": (8, 4, 6, 5, 11, 14, 28)},
    ),
    Move(
        name="zero border",
        text="Copy the needed part of the image once into a buffer with a border of zeros, so that the "
        "inner loops have no bounds checks.",
        category=Category.CONTROL_FLOW,
        gain=1.9,
        needs={**ROWS, "border": ("checks",)},
        applies=_checks_tiles,
        sets={"border": "zeros"},
    ),
    Move(
        name="im2col",
        text="Gather the windows of one output row into a small matrix in cache (implicit im2col) and "
        "reduce along it: one flat loop with contiguous loads replaces three nested ones.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"algorithm": ("direct",)},
        sets={"algorithm": "im2col"},
        varies={"tile_k": (3, 2, 6), "tile_q": (8, 4, 6, 5, 11)},
    ),
    Move(
        name="direct",
        text="Read the windows straight from the image instead of gathering them first: the overlap of "
        "neighbouring windows is already in the first-level cache.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"algorithm": ("im2col",)},
        sets={"algorithm": "direct"},
    ),
    Move(
        name="bf16 dot products",
        text="Round pixels and weights to bfloat16 and multiply them in pairs with AVX512-BF16 dot "
        "products: twice the multiplies per instruction, summed in float32, which the problem allows.",
        category=Category.PRECISION,
        gain=1.3,
        needs={"algorithm": ("direct",), "dtype": ("float32",), "flags": TILED["flags"]},
        applies=_rounds_up,
        sets={"dtype": "bf16", "border": "zeros"},
        varies={"tile_q": (8, 4, 14, 11), "tile_k": (3, 6, 2, 1)},
    ),
    Move(
        name="bf16 im2col",
        text="Gather windows as bfloat16 and reduce them in pairs with AVX512-BF16 dot products, summed in"
        " float32: the flat reduction has no odd tap to pad in every window row.",
        category=Category.PRECISION,
        gain=1.25,
        needs={**TILED, "dtype": ("float32",)},
        applies=_bf16_allowed,
        sets={"dtype": "bf16", "algorithm": "im2col", "border": "zeros"},
        varies={"tile_q": (8, 4, 14, 11), "tile_k": (3, 6, 2, 1)},
    ),
    Move(
        name="fuse relu",
        text="Apply the ReLU where the convolution's sum is still in a register, which saves one pass over"
        " the whole output.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"fuse": ("none",)},
        applies=has_relu,
        sets={"fuse": "relu"},
    ),
    Move(
        name="fuse max-pool",
        text="Keep only the last few rows of the convolution in cache, take ReLU and maximum there and "
        "write pooled rows alone: the convolution's output never reaches memory.",
        category=Category.MEMORY,
        gain=1.4,
        needs={**ROWS, "fuse": ("none", "relu")},
        applies=has_pool,
        sets={"fuse": "pool"},
    ),
    Move(
        name="block transpose",
        text="Turn rows from channels-last to the output's layout with square blocks transposed in vector "
        "registers, so that stores are whole vectors instead of scattered scalars.",
        category=Category.MEMORY,
        gain=1.05,
        needs={**TILED, "store": ("scalar",)},
        sets={"store": "vectors"},
    ),
    Move(
        name="row tasks",
        text="Cut the work into tasks of a few output rows, so that all cores stay busy to the end and a "
        "task's part of the image stays in cache.",
        category=Category.PARALLELISM,
        gain=1.03,
        needs={**ROWS, "threads": (True,)},
        varies={"rows": (8, 14, 4, 28), "schedule": ("dynamic", "static")},
    ),
    Move(
        name="prefetch",
        text="Prefetch the weights some taps ahead into the first-level cache: they stream from the second "
        "level in every tile.",
        category=Category.LATENCY,
        gain=1.02,
        needs={**TILED, "prefetch": (0,)},
        varies={"prefetch": (4, 8, 16)},
    ),
    Move(
        name="unroll",
        text="Unroll the loop along the window's row, so that its counter and address arithmetic disappear"
        " between the multiply-adds.",
        category=Category.CONTROL_FLOW,
        gain=1.03,
        needs=TILED,
        varies={"unroll": (2, 4, 3, 11)},
    ),
    Move(
        name="huge pages",
        text="Ask for huge pages for the output before it is first written: its thousands of page faults "
        "become a handful.",
        category=Category.LATENCY,
        gain=1.1,
        needs={**ROWS, "pages": ("small",)},
        sets={"pages": "huge"},
    ),
)

NAIVE: Knobs = {
    "algorithm": "loops",
    "flags": "-O2",
    "threads": False,
    "constants": False,
    "tile_q": 1,
    "tile_k": 1,
    "border": "checks",
    "dtype": "float32",
    "fuse": "none",
    "store": "scalar",
    "rows": 0,
    "schedule": "static",
    "prefetch": 0,
    "unroll": 1,
    "pages": "small",
}
