"""2-D convolution in Triton, optionally with ReLU and max-pool: from plain sums to tensor cores.

The fast algorithm is an implicit GEMM of output pixels by channels. The knob `input` selects where it reads
its windows: the original tensor, a copy in the operands' dtype, a copy with a border of zeros, or a copy
folded by the stride ("depth": stride x stride pixels become channels, innermost), in which a row of a window
is one contiguous run.
"""

from __future__ import annotations

from search.proposers.playbook.move import Knob, Knobs, Move
from search.proposers.playbook.templates.scaffold import kernel_file
from search.proposers.playbook.templates.triton.conv.direct import direct
from search.proposers.playbook.templates.triton.conv.epilogue import forward, separate_functions
from search.proposers.playbook.templates.triton.conv.gemm import gemm
from search.proposers.playbook.templates.triton.conv.plan import Plan
from search.proposers.playbook.templates.triton.conv.prepare import FOLD_ELEMENTS
from search.proposers.playbook.templates.triton.pieces import (
    IMPORTS,
    PROCESSORS,
    SHARED_BYTES,
    ceil_div,
    module,
    number,
    power_of_two,
    powers,
)
from search.proposers.playbook.workload import Workload
from search.records.tree import Category


def _strided(workload: Workload, knobs: Knobs) -> bool:
    return workload.sizes["dilation_h"] == workload.sizes["dilation_w"] == 1


def _has_relu(workload: Workload, knobs: Knobs) -> bool:
    return "relu" in workload.epilogue


def _has_pool(workload: Workload, knobs: Knobs) -> bool:
    return "maxpool" in workload.epilogue


def _relaxed(workload: Workload, knobs: Knobs) -> bool:
    return "float16" in workload.lower


def _relaxed_unit(workload: Workload, knobs: Knobs) -> bool:
    return _relaxed(workload, knobs) and _strided(workload, knobs)


GEMM: dict[str, tuple[Knob, ...]] = {"algorithm": ("gemm",)}


MOVES = (
    Move(
        name="channels per program",
        text="Let each program compute several output channels at once: a pixel that has been loaded is then"
        " multiplied several times, instead of one load for each multiply-add.",
        category=Category.COMPUTE,
        gain=2.0,
        needs={"algorithm": ("direct",)},
        varies={"channels": (8, 16, 4, 32), "block_m": (128, 256)},
    ),
    Move(
        name="implicit gemm",
        text="Treat the convolution as a matrix product, output pixels by channels, summed over the window: "
        "each program gathers its windows tile by tile (implicit im2col) and multiplies them with "
        "tl.dot.",
        category=Category.COMPUTE,
        gain=3.0,
        needs={"algorithm": ("direct",)},
        sets={"algorithm": "gemm", "block_n": 32},
        varies={"block_m": (64, 128), "block_k": (16, 32)},
    ),
    Move(
        name="tensor cores, tf32",
        text="Let the products round their operands to TF32 and run on the tensor cores, summed in float32: "
        "many times the multiply-adds per cycle, and still as exact as the problem asks for.",
        category=Category.PRECISION,
        gain=3.0,
        needs={**GEMM, "precision": ("ieee",)},
        applies=_relaxed,
        sets={"precision": "tf32"},
        varies={"block_m": (128, 64), "block_n": (128, 32), "warps": (8, 4)},
    ),
    Move(
        name="tensor cores, fp16",
        text="Round pixels and weights to float16 and multiply them on the tensor cores, summed in float32: "
        "twice the rate of TF32 and half the bytes, and as exact as the problem asks for.",
        category=Category.PRECISION,
        gain=5.0,
        needs={**GEMM, "precision": ("ieee", "tf32")},
        applies=_relaxed,
        sets={"precision": "fp16", "block_k": 32},
        varies={"block_m": (128, 64), "block_n": (128, 32), "warps": (8, 4)},
    ),
    Move(
        name="implicit gemm, fp16",
        text="Make it an implicit GEMM on the tensor cores from the start: gather the windows tile by tile, "
        "round pixels and weights to float16 and multiply them with tl.dot into a float32 accumulator.",
        category=Category.COMPUTE,
        gain=12.0,
        needs={"algorithm": ("direct",)},
        applies=_relaxed,
        sets={"algorithm": "gemm", "precision": "fp16", "block_k": 32, "stages": 3},
        varies={"block_m": (128, 64), "block_n": (128, 32), "warps": (8, 4)},
    ),
    Move(
        name="packed weights",
        text="Repack the weights once a call to [window][channels] in the operands' dtype, padded with zeros"
        " to whole tiles: the inner loop then loads them in wide, aligned pieces without masks.",
        category=Category.MEMORY,
        gain=1.15,
        needs={**GEMM, "weights": ("plain",)},
        sets={"weights": "packed"},
    ),
    Move(
        name="half copy",
        text="Convert the input to float16 once, in a separate kernel, instead of on every load: each "
        "pixel is read dozens of times, and then as half the bytes.",
        category=Category.PRECISION,
        gain=1.2,
        needs={**GEMM, "precision": ("fp16",), "input": ("plain",)},
        sets={"input": "half"},
    ),
    Move(
        name="zero border",
        text="Copy the input once into a buffer with a border of zeros, in the operands' dtype: the inner "
        "loop loses its four bounds checks a pixel, and every load is unconditional.",
        category=Category.CONTROL_FLOW,
        gain=1.3,
        needs={**GEMM, "input": ("plain", "half"), "precision": ("tf32", "fp16")},
        sets={"input": "padded", "weights": "packed"},
    ),
    Move(
        name="offset table",
        text="Put the offset of each window position into a small table when the weights are packed: one "
        "load replaces the divisions by the window's sizes in every step.",
        category=Category.COMPUTE,
        gain=1.05,
        needs={**GEMM, "input": ("padded",), "index": ("divide",)},
        sets={"index": "table"},
    ),
    Move(
        name="aligned rows",
        text="Pad each row of the window to a power of two with zero weights, so that a step of the "
        "reduction covers whole rows: neighbouring elements are neighbours in memory and load as "
        "vectors, from a padded copy even asynchronously.",
        category=Category.MEMORY,
        gain=1.2,
        needs={**GEMM, "input": ("plain", "half", "padded"), "order": ("packed",)},
        applies=_relaxed,
        sets={"order": "rows", "weights": "packed", "index": "divide"},
        varies={"block_k": (32, 64)},
    ),
    Move(
        name="space to depth",
        text="Fold the input by the stride: stride x stride pixels become channels, innermost, in float16 "
        "with a zero border. The convolution then has stride 1 and each row of a window is one "
        "contiguous, aligned run: 16-byte asynchronous copies, no masks, no divisions.",
        category=Category.MEMORY,
        gain=2.0,
        needs={**GEMM, "input": ("plain", "half", "padded")},
        applies=_relaxed_unit,
        sets={
            "input": "depth",
            "precision": "fp16",
            "weights": "packed",
            "order": "packed",
            "index": "divide",
        },
        varies={"block_k": (64, 32), "block_m": (128, 256), "stages": (3, 4)},
    ),
    Move(
        name="space to depth, all channels",
        text="Fold the input by the stride into channels (float16, zero border), so that each row of a "
        "window is one contiguous run without masks, and let each program compute all output channels "
        "of its pixels, so that the input is read once.",
        category=Category.MEMORY,
        gain=2.4,
        needs={**GEMM, "input": ("plain", "half")},
        applies=_relaxed_unit,
        sets={
            "input": "depth",
            "precision": "fp16",
            "weights": "packed",
            "order": "packed",
            "index": "divide",
            "columns": "exact",
            "block_k": 64,
        },
        varies={"block_m": (128, 256), "warps": (8, 4), "stages": (3, 4)},
    ),
    Move(
        name="tile",
        text="Change the tile of output pixels by channels: larger tiles reuse each loaded element more "
        "often, smaller ones leave room for more programs on a multiprocessor.",
        category=Category.PARALLELISM,
        gain=1.15,
        needs=GEMM,
        varies={"block_m": (128, 256, 64), "block_n": (128, 64, 32), "warps": (8, 4)},
    ),
    Move(
        name="exact columns",
        text="Cover the output channels with tiles of different widths (96 = 64 + 32) in one program, in "
        "place of one power of two with masked columns: no multiply-add is wasted and each window is "
        "loaded once.",
        category=Category.COMPUTE,
        gain=1.15,
        needs={**GEMM, "columns": ("tile",), "weights": ("packed",)},
        sets={"columns": "exact"},
        varies={"block_m": (128, 256, 64), "warps": (8, 4)},
    ),
    Move(
        name="pipeline",
        text="Keep more steps of the reduction in flight: asynchronous copies fill the next tiles in shared "
        "memory while the tensor cores work on the present one.",
        category=Category.LATENCY,
        gain=1.1,
        needs=GEMM,
        varies={"stages": (3, 4, 2, 5)},
    ),
    Move(
        name="longer steps",
        text="Change how much of the reduction one step covers: longer steps need fewer synchronisations, "
        "shorter ones leave shared memory for more stages.",
        category=Category.CONTROL_FLOW,
        gain=1.08,
        needs=GEMM,
        varies={"block_k": (64, 32, 128, 16), "stages": (3, 4)},
    ),
    Move(
        name="resident weights",
        text="Start one program for each multiprocessor, load all weights into shared memory once and loop "
        "over tiles of pixels: only pixels stream from the L2 cache, and the next tile's load while "
        "this one is multiplied.",
        category=Category.MEMORY,
        gain=1.2,
        needs={**GEMM, "input": ("depth",), "columns": ("exact",), "resident": (False,)},
        sets={"resident": True},
        varies={"block_m": (64, 128), "stages": (2, 3, 1), "warps": (4, 8)},
    ),
    Move(
        name="one preparing launch",
        text="Fold packing the weights and copying the input into one launch, told apart by the program's "
        "number: one launch less on the critical path of a call that lasts a tenth of a millisecond.",
        category=Category.LATENCY,
        gain=1.06,
        needs={
            **GEMM,
            "input": ("half", "padded", "depth"),
            "weights": ("packed",),
            "launches": ("separate",),
        },
        sets={"launches": "merged"},
    ),
    Move(
        name="fuse relu",
        text="Apply the ReLU to the accumulator before it is stored, which saves a pass over the whole "
        "output.",
        category=Category.MEMORY,
        gain=1.2,
        needs={"fuse": ("none",)},
        applies=_has_relu,
        sets={"fuse": "relu"},
    ),
    Move(
        name="half intermediate",
        text="Apply bias and ReLU to the accumulator and keep the convolution's output in float16 with "
        "channels innermost: a quarter of the bytes of writing and reading it in float32, mostly within"
        " the L2 cache; a light kernel pools it into the result.",
        category=Category.MEMORY,
        gain=1.5,
        needs={**GEMM, "fuse": ("none", "relu"), "precision": ("fp16", "tf32")},
        applies=_has_pool,
        sets={"fuse": "staged"},
    ),
    Move(
        name="fuse max-pool",
        text="Let each program compute pooled pixels: it runs the product once for each position of the "
        "pooling window and keeps the maximum in registers, so that the convolution's output never "
        "exists in memory.",
        category=Category.MEMORY,
        gain=1.1,
        needs={**GEMM, "fuse": ("none", "relu"), "resident": (False,)},
        applies=_has_pool,
        sets={"fuse": "window"},
    ),
)


NAIVE: Knobs = {
    "algorithm": "direct",
    "channels": 1,
    "precision": "ieee",
    "input": "plain",
    "weights": "plain",
    "order": "packed",
    "index": "divide",
    "columns": "tile",
    "resident": False,
    "launches": "separate",
    "fuse": "none",
    "block_m": 128,
    "block_n": 32,
    "block_k": 16,
    "warps": 4,
    "stages": 2,
}
"""The direct translation."""


class Conv2d:
    """The family of convolution kernels."""

    op = "conv2d"
    language = "triton"
    naive: Knobs = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 only. Tiles must fit registers and shared memory; the choices must go together."""
        if workload.dtype != "float32" or workload.sizes["groups"] != 1:
            return False
        fuse = knobs["fuse"]
        if (fuse in ("relu",) and "relu" not in workload.epilogue) or (
            fuse in ("staged", "window") and "maxpool" not in workload.epilogue
        ):
            return False
        if workload.sizes["N"] > 65535 or workload.sizes["K"] > 65535:
            return False
        if knobs["algorithm"] == "direct":
            small = number(knobs, "channels") * number(knobs, "block_m") <= 64 * 32 * number(knobs, "warps")
            return small and _direct_is_plain(knobs)
        return _consistent(workload, knobs) and _fits(Plan(workload, knobs))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        plan = Plan(workload, knobs)
        code = direct(plan) if knobs["algorithm"] == "direct" else gemm(plan)
        imports = [*IMPORTS, "import functools"] if knobs["resident"] else IMPORTS
        return kernel_file(
            summary=_summary(plan),
            language=self.language,
            workload=workload,
            knobs=knobs,
            imports=imports,
            code=module(
                *([PROCESSORS] if knobs["resident"] else []), *code.functions, *separate_functions(plan)
            ),
            inputs=["x"],
            forward=forward(plan, code),
        )


TEMPLATE = Conv2d()


def _summary(plan: Plan) -> str:
    what = " + ".join(["conv2d", *plan.workload.epilogue])
    if plan.knobs["algorithm"] == "direct":
        return f"{what} in Triton: each program sums the windows of {plan.block_m} pixels, tap by tap."
    how = {
        "plain": "windows gathered from the input",
        "half": "windows gathered from a float16 copy",
        "padded": "windows gathered from a copy with a border of zeros",
        "depth": "input folded by the stride into channels",
    }
    return f"{what} in Triton: implicit GEMM in {plan.precision}, {how[plan.input]}."


def _direct_is_plain(knobs: Knobs) -> bool:
    """Whether no knob is set that only the GEMM uses."""
    plain = ("precision", "input", "weights", "order", "index", "columns", "resident", "launches")
    return all(knobs[name] == NAIVE[name] for name in plain) and knobs["fuse"] in ("none", "relu")


def _consistent(workload: Workload, knobs: Knobs) -> bool:
    """Whether the choices of a GEMM go together."""
    if knobs["columns"] == "exact" and not knobs["resident"] and number(knobs, "stages") < 2:
        return False  # Triton 3.6 on an H200: 11 of 39 such kernels wrote wrong columns or crashed
    plan = Plan(workload, knobs)
    if plan.precision != "ieee" and "float16" not in workload.lower:
        return False
    needs_pack = plan.input in ("padded", "depth") or plan.rows or plan.table or plan.exact or plan.resident
    if needs_pack and not plan.packed:
        return False
    if plan.input in ("half", "depth") and not plan.half:
        return False
    if plan.depth and (plan.rows or plan.table or not _strided(workload, knobs)):
        return False
    if plan.depth and power_of_two(plan.wd) * workload.sizes["stride_w"] > FOLD_ELEMENTS:
        return False
    if plan.table and (plan.input != "padded" or plan.rows):
        return False
    if plan.exact and (len(plan.pieces) > 3 or plan.columns > 256):
        return False
    if plan.resident and not (plan.depth and plan.exact and plan.fuse != "window"):
        return False
    if knobs["launches"] == "merged" and not (plan.packed and plan.input != "plain"):
        return False
    return plan.fuse != "staged" or plan.precision != "ieee"


def _fits(plan: Plan) -> bool:
    """Whether accumulators and addresses fit into registers, tiles into shared memory."""
    threads = 32 * number(plan.knobs, "warps")
    width = sum(width for _, width in plan.pieces)
    item = 2 if plan.half else 4
    taken = plan.block_m * width * (2 if plan.fuse == "window" else 1)
    if taken > 192 * threads or plan.block_m * width < 8 * threads:
        return False
    if plan.resident:
        weights = plan.taps_padded * plan.columns * item
        tile = plan.block_m * plan.taps_padded * item
        epilogue = plan.block_m * max(width for _, width in plan.pieces) * 4
        if len(powers(plan.taps_padded)) > 5 or 2 * plan.block_m < threads:
            return False
        return weights + max(1, number(plan.knobs, "stages")) * tile + epilogue <= SHARED_BYTES
    gathered = plan.block_m * plan.block_k
    if gathered > 64 * threads or gathered < threads:
        return False
    step = (gathered + plan.block_k * width) * item
    deep = number(plan.knobs, "stages") <= max(2, ceil_div(plan.taps_padded, plan.block_k))
    return deep and max(number(plan.knobs, "stages") * step, plan.block_m * width * 4) <= SHARED_BYTES
