"""Matrix product in Triton: from small tiles of float32 to operands split into half-precision terms.

Tensor cores do not support float32. Splitting each operand once into a sum of float16 or bfloat16 terms and
adding up the products of terms gives float32's accuracy at several times its speed (Henry, Tang,
Heinecke: "Leveraging the bfloat16 Artificial Intelligence Datatype For Higher-Precision Computations", 2019;
Ootomo, Yokota: "Recovering single precision accuracy from Tensor Cores", 2022).

Tensor cores do not round their float32 sums to nearest: over K = 4096, three float16 products are off by
1.4e-5 on an H200, and eager's float32 by 1.1e-6. So ordinary instructions add up the sums of the steps
(`sums` = `promoted`).
"""

from __future__ import annotations

from dataclasses import dataclass

from search.proposers.playbook.move import Knob, Knobs, Move
from search.proposers.playbook.templates.scaffold import kernel_file
from search.proposers.playbook.templates.triton.pieces import (
    IMPORTS,
    INT32_LIMIT,
    SHARED_BYTES,
    ceil_div,
    indent,
    join,
    kernel,
    module,
    number,
    power_of_two,
)
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

SPLIT_BLOCK = 2048
PEAK_BLOCK = 16384


@dataclass(frozen=True, kw_only=True)
class _Split:
    """A split of operands into sums of terms; `products` are the multiplied pairs, smallest first."""

    dtype: str
    terms: int
    products: tuple[tuple[int, int], ...]

    @property
    def scaled(self) -> bool:
        """float16 has five bits of exponent: operands are scaled by a power of two first."""
        return self.dtype == "float16"


SPLITS = {
    "fp16x3": _Split(dtype="float16", terms=2, products=((1, 0), (0, 1), (0, 0))),
    "bf16x3": _Split(dtype="bfloat16", terms=2, products=((1, 0), (0, 1), (0, 0))),
    "bf16x6": _Split(dtype="bfloat16", terms=3, products=((2, 0), (1, 1), (0, 2), (1, 0), (0, 1), (0, 0))),
}
RELAXED = ("tf32",)
"""Precisions that need a loose tolerance."""


def _relaxed(workload: Workload, knobs: Knobs) -> bool:
    return "tfloat32" in workload.lower


UNSPLIT: dict[str, tuple[Knob, ...]] = {"split": ("none",)}
FAST: dict[str, tuple[Knob, ...]] = {"split": tuple(SPLITS)}

MOVES = (
    Move(
        name="larger tiles",
        text="Give each program a larger tile of the output: every loaded element then takes part in more "
        "multiply-adds, and the product is no longer bound by loads.",
        category=Category.MEMORY,
        gain=2.0,
        needs=UNSPLIT,
        varies={"block_m": (128, 64), "block_n": (128, 64), "block_k": (32, 16), "warps": (8, 4)},
    ),
    Move(
        name="grouped order",
        text="Run through the tiles in groups of a few rows of tiles, so that programs that are active "
        "together share both their rows of A and their columns of B in the L2 cache.",
        category=Category.MEMORY,
        gain=1.08,
        varies={"group": (8, 4, 16)},
    ),
    Move(
        name="three tf32 products",
        text="Replace float32 multiply-adds by three TF32 products on the tensor cores, of each operand's "
        "leading bits and of the rest: float32's accuracy at tensor-core speed.",
        category=Category.PRECISION,
        gain=2.5,
        needs={**UNSPLIT, "precision": ("ieee",)},
        sets={"precision": "tf32x3"},
        varies={"block_m": (128, 64), "block_n": (128, 64), "warps": (8, 4)},
    ),
    Move(
        name="bfloat16 products",
        text="Split the operands into bfloat16 terms as they are loaded and add up the products of terms on "
        "the tensor cores: six products keep float32's accuracy, three come close.",
        category=Category.PRECISION,
        gain=3.0,
        needs={**UNSPLIT, "precision": ("ieee", "tf32x3")},
        varies={"precision": ("bf16x6", "bf16x3"), "block_m": (128,), "block_n": (128,), "warps": (8, 4)},
    ),
    Move(
        name="tf32",
        text="Let the tensor cores round both operands to TF32: a single product, with ten bits of mantissa.",
        category=Category.PRECISION,
        gain=5.0,
        needs={**UNSPLIT, "precision": ("ieee", "tf32x3")},
        applies=_relaxed,
        sets={"precision": "tf32"},
        varies={"block_m": (128, 64), "block_n": (128, 64), "warps": (8, 4)},
    ),
    Move(
        name="split beforehand, float16",
        text="Split both operands once, in a separate kernel, into two float16 terms (22 bits; scaled by a"
        " power of two so that nothing overflows) and add up three half-precision products: the terms "
        "go from memory straight to the tensor cores, and the error stays at float32's level.",
        category=Category.PRECISION,
        gain=4.0,
        needs=UNSPLIT,
        sets={"split": "fp16x3", "precision": "ieee", "sums": "promoted", "block_m": 128},
        varies={"block_n": (128, 256), "block_k": (64, 32), "stages": (3, 4), "warps": (8, 16)},
    ),
    Move(
        name="split beforehand, bfloat16",
        text="Split both operands once into bfloat16 terms, which need no scaling, and add up their products"
        " with half-precision tensor cores: three products of two terms are fast, six of three terms "
        "exact to float32.",
        category=Category.PRECISION,
        gain=3.5,
        needs=UNSPLIT,
        sets={"precision": "ieee", "sums": "promoted", "block_m": 128, "block_n": 128, "warps": 8},
        varies={"split": ("bf16x3", "bf16x6"), "block_k": (32, 64), "stages": (3, 4)},
    ),
    Move(
        name="float16 terms",
        text="Split into two float16 terms instead of bfloat16 ones: 22 bits from two terms, so three "
        "products reach float32's accuracy; a power of two from the largest element keeps them in "
        "range.",
        category=Category.PRECISION,
        gain=1.3,
        needs={"split": ("bf16x3", "bf16x6")},
        sets={"split": "fp16x3"},
        varies={"block_k": (64, 32), "stages": (3, 4)},
    ),
    Move(
        name="sums on the tensor cores",
        text="Leave the running sum in the tensor cores' accumulator over the whole reduction: no additions "
        "between steps and half the registers, at the price of their rounding.",
        category=Category.PRECISION,
        gain=1.3,
        needs={**FAST, "sums": ("promoted",)},
        applies=_relaxed,
        sets={"sums": "chained"},
        varies={"block_n": (256, 128), "stages": (3, 4)},
    ),
    Move(
        name="tile",
        text="Change the tile: 128 x 256 with eight warps halves the loads per multiply-add against 128 x "
        "128, smaller ones fill the last wave of programs better.",
        category=Category.PARALLELISM,
        gain=1.1,
        needs=FAST,
        varies={"block_m": (128, 256, 64), "block_n": (256, 128, 64), "warps": (8, 4, 16)},
    ),
    Move(
        name="pipeline",
        text="Keep more steps of the reduction in flight: asynchronous copies fill the next tiles in shared "
        "memory while the tensor cores work on the present one.",
        category=Category.LATENCY,
        gain=1.15,
        varies={"stages": (3, 4, 2, 5)},
    ),
    Move(
        name="longer steps",
        text="Change how much of the reduction one step covers: longer steps synchronise less often, shorter"
        " ones leave shared memory for more stages.",
        category=Category.CONTROL_FLOW,
        gain=1.05,
        varies={"block_k": (64, 32, 16), "stages": (3, 2, 4)},
    ),
    Move(
        name="bulk copies",
        text="Load tiles through tensor descriptors, Hopper's bulk copy engine: one instruction a tile in "
        "place of an address in every thread, which frees registers and issue slots for the products.",
        category=Category.LATENCY,
        gain=1.1,
        needs={**FAST, "loads": ("pointers",)},
        sets={"loads": "descriptors"},
        varies={"stages": (3, 4), "block_k": (32, 64)},
    ),
    Move(
        name="persistent programs",
        text="Start one program for each multiprocessor and let it loop over tiles: the loads of the next "
        "tile begin while the last one is written.",
        category=Category.LATENCY,
        gain=1.05,
        needs={**FAST, "persistent": (False,)},
        sets={"persistent": True},
    ),
)


NAIVE: Knobs = {
    "precision": "ieee",
    "split": "none",
    "sums": "chained",
    "loads": "pointers",
    "persistent": False,
    "group": 1,
    "block_m": 32,
    "block_n": 32,
    "block_k": 32,
    "warps": 4,
    "stages": 1,
}
"""The direct translation."""


class Matmul:
    """The family of matrix products."""

    op = "matmul"
    language = "triton"
    naive: Knobs = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 problems; tiles must fit into registers and shared memory."""
        s = workload.sizes
        if (
            workload.dtype != "float32"
            or max(s["M"] * s["K"], s["K"] * s["N"], s["M"] * s["N"]) >= INT32_LIMIT
        ):
            return False
        if knobs["precision"] in RELAXED and "tfloat32" not in workload.lower:
            return False
        split = SPLITS.get(str(knobs["split"]))
        promoted = knobs["sums"] == "promoted"
        if split and knobs["precision"] != "ieee":
            return False
        if promoted and split is None:
            return False
        if split is None and (knobs["loads"] == "descriptors" or knobs["persistent"]):
            return False
        if knobs["loads"] == "descriptors" and (s["K"] % 8 or s["N"] % 8):
            return False
        threads = 32 * number(knobs, "warps")
        block_m, block_n, block_k = (number(knobs, f"block_{axis}") for axis in "mnk")
        outputs = block_m * block_n
        if (
            outputs > (64 if promoted or (knobs["precision"] == "ieee" and split is None) else 128) * threads
            or outputs < 4 * threads
        ):
            return False
        if (split or knobs["precision"] != "ieee") and block_m < 16 * number(knobs, "warps") // 2:
            return False
        item = 2 * split.terms if split else 4
        stage = (block_m + block_n) * block_k * item
        # Within the loop, Triton splits float32 operands into terms, in registers or shared memory.
        stages = number(knobs, "stages") + (1 if "x" in str(knobs["precision"]) else 0)
        return stages * stage <= SHARED_BYTES and block_k <= s["K"]

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        split = SPLITS.get(str(knobs["split"]))
        imports = [*IMPORTS]
        if knobs["loads"] == "descriptors":
            imports.append("from triton.tools.tensor_descriptor import TensorDescriptor")
        functions: list[str] = []
        lines: list[str] = []
        if split:
            functions, lines = _prepare(workload, split)
        functions.append(_multiply(workload, knobs, split))
        return kernel_file(
            summary=_summary(knobs, split),
            language=self.language,
            workload=workload,
            knobs=knobs,
            imports=imports,
            code=module(*functions),
            inputs=["a", "b"],
            forward="\n".join([*lines, *_launch(workload, knobs, split)]),
        )


TEMPLATE = Matmul()


def _summary(knobs: Knobs, split: _Split | None) -> str:
    tile = f"{knobs['block_m']} x {knobs['block_n']} tiles"
    if split:
        terms = f"operands as sums of {split.terms} {split.dtype} terms, {len(split.products)} products"
        return f"matmul in Triton: {tile}, {terms}."
    return f"matmul in Triton: {tile}, products in {knobs['precision']}."


def _constants(workload: Workload, knobs: Knobs) -> dict[str, int]:
    s = workload.sizes
    names = {name: s[name] for name in ("M", "N", "K")}
    names |= {f"BLOCK_{axis.upper()}": number(knobs, f"block_{axis}") for axis in "mnk"}
    names["GROUP"] = number(knobs, "group")
    names["ROWS"] = ceil_div(s["M"], names["BLOCK_M"])
    names["COLUMNS"] = ceil_div(s["N"], names["BLOCK_N"])
    return names


def _multiply(workload: Workload, knobs: Knobs, split: _Split | None) -> str:
    """The kernel that multiplies."""
    s, constants = workload.sizes, _constants(workload, knobs)
    descriptors = knobs["loads"] == "descriptors"
    scaled = split is not None and split.scaled
    arguments = ["a", "b", *(["scales"] if scaled else []), "out"]
    finish = ""
    if scaled:  # the lower scale first: both at once, or the higher one first, may overflow float32
        finish = join(
            "lower = tl.minimum(tl.load(scales), tl.load(scales + 1))",
            "total = total * lower * tl.maximum(tl.load(scales), tl.load(scales + 1))",
        )
    ragged = [
        f"({name} < {size})[{axis}]"
        for name, size, axis, block in (
            ("row", "M", ":, None", "BLOCK_M"),
            ("column", "N", "None, :", "BLOCK_N"),
        )
        if s[size] % constants[block]
    ]
    mask = f", mask={' & '.join(ragged)}" if ragged else ""
    store = f"tl.store(out + row[:, None] * N + column[None, :], total{mask})"
    tile = join(
        _tile(knobs, constants),
        _addresses(workload, knobs, constants),
        "total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)",
        "for start in range(0, K, BLOCK_K):\n" + indent(_step(workload, knobs, split, descriptors)),
        finish,
        store,
    )
    doc = "One program: a BLOCK_M x BLOCK_N tile of the output."
    if knobs["persistent"]:
        doc = "One program: one BLOCK_M x BLOCK_N tile of the output after another."
        tile = "for tile in range(tl.program_id(0), ROWS * COLUMNS, tl.num_programs(0)):\n" + indent(tile)
    return kernel("multiply", arguments, doc, tile, constants)


def _tile(knobs: Knobs, constants: dict[str, int]) -> str:
    """Lines that choose the tile: `tile_row`, `tile_column`."""
    tile = "tile" if knobs["persistent"] else "tl.program_id(0)"
    if number(knobs, "group") == 1:
        return f"tile_row, tile_column = {tile} // COLUMNS, {tile} % COLUMNS"
    height = "GROUP" if constants["ROWS"] % constants["GROUP"] == 0 else "tl.minimum(GROUP, ROWS - first)"
    return join(
        "tile = tl.program_id(0)" if not knobs["persistent"] else "",
        f"""
        first = tile // (GROUP * COLUMNS) * GROUP
        height = {height}
        within = tile % (GROUP * COLUMNS)
        tile_row, tile_column = first + within % height, within // height
        """,
    )


def _addresses(workload: Workload, knobs: Knobs, constants: dict[str, int]) -> str:
    """Lines that set rows and columns, and the pointers where there are no descriptors."""
    lines = [
        "row = tile_row * BLOCK_M + tl.arange(0, BLOCK_M)",
        "column = tile_column * BLOCK_N + tl.arange(0, BLOCK_N)",
    ]
    if knobs["loads"] == "pointers":
        row = "tl.minimum(row, M - 1)" if workload.sizes["M"] % constants["BLOCK_M"] else "row"
        lines += [
            "depth = tl.arange(0, BLOCK_K)",
            f"left = a + {row}[:, None] * K + depth[None, :]",
            "right = b + depth[:, None] * N + column[None, :]",
        ]
    return "\n".join(lines)


def _step(workload: Workload, knobs: Knobs, split: _Split | None, descriptors: bool) -> str:
    """One step of the reduction: loads of all terms, then their products, smallest first."""
    s = workload.sizes
    terms = split.terms if split else 1
    if descriptors:
        lines = []
        for term in range(terms):
            row = f"{term} * M + " if term > 1 else "M + " if term else ""
            lines.append(f"a{term} = a.load([{row}tile_row * BLOCK_M, start])")
        for term in range(terms):
            row = f"{term} * K + " if term > 1 else "K + " if term else ""
            lines.append(f"b{term} = b.load([{row}start, tile_column * BLOCK_N])")
    else:
        short = s["K"] % number(knobs, "block_k") != 0
        narrow = s["N"] % number(knobs, "block_n") != 0
        left = ", mask=(start + depth < K)[None, :], other=0.0" if short else ""
        inside = (["(start + depth < K)[:, None]"] if short else []) + (
            ["(column < N)[None, :]"] if narrow else []
        )
        right = f", mask={' & '.join(inside)}, other=0.0" if inside else ""
        lines = []
        for term in range(terms):
            more = f" + {term} * M * K" if term > 1 else " + M * K" if term else ""
            lines.append(f"a{term} = tl.load(left{more}{left})")
        for term in range(terms):
            more = f" + {term} * K * N" if term > 1 else " + K * N" if term else ""
            lines.append(f"b{term} = tl.load(right{more}{right})")
    precision = "" if split else f', input_precision="{knobs["precision"]}"'
    promoted = knobs["sums"] == "promoted"
    for place, (i, j) in enumerate(split.products if split else ((0, 0),)):
        before = "" if promoted and place == 0 else ", part" if promoted else ", total"
        lines.append(f"{'part' if promoted else 'total'} = tl.dot(a{i}, b{j}{before}{precision})")
    if promoted:
        lines.append("total += part")
    if not descriptors:
        lines += ["left += BLOCK_K", "right += BLOCK_K * N"]
    return "\n".join(lines)


def _prepare(workload: Workload, split: _Split) -> tuple[list[str], list[str]]:
    """Kernels that split the operands, and the lines of `forward` that run them."""
    s = workload.sizes
    sizes = (s["M"] * s["K"], s["K"] * s["N"])
    jobs = [ceil_div(size, SPLIT_BLOCK) for size in sizes]
    peaks = [ceil_div(size, PEAK_BLOCK) for size in sizes]
    constants = {
        "A_ELEMENTS": sizes[0],
        "B_ELEMENTS": sizes[1],
        "A_JOBS": jobs[0],
        "A_PEAKS": peaks[0],
        "B_PEAKS": peaks[1],
    }
    split_one = _split_block(split)
    functions = [split_one]
    forward = ["a, b = a.contiguous(), b.contiguous()"]
    forward.append(f"out = torch.empty(({s['M']}, {s['N']}), dtype=a.dtype, device=a.device)")
    made = f"dtype=torch.{split.dtype}, device=a.device"
    forward.append(f"a_terms = torch.empty(({split.terms * s['M']}, {s['K']}), {made})")
    forward.append(f"b_terms = torch.empty(({split.terms * s['K']}, {s['N']}), {made})")
    if split.scaled:
        functions = [*_scales(constants), split_one]
        body = """
        job = tl.program_id(0)
        if job < A_JOBS:
            scale, inverse = power_of_two(peaks, A_PEAKS)
            split_block(job, a, scale, a_terms, A_ELEMENTS)
            if job == 0:
                tl.store(scales, inverse)
        else:
            scale, inverse = power_of_two(peaks + A_PEAKS, B_PEAKS)
            split_block(job - A_JOBS, b, scale, b_terms, B_ELEMENTS)
            if job == A_JOBS:
                tl.store(scales + 1, inverse)
        """
        arguments = ["a", "b", "peaks", "a_terms", "b_terms", "scales"]
        forward.append(f"peaks = torch.empty({sum(peaks)}, device=a.device)")
        forward.append("scales = torch.empty(2, device=a.device)")
        forward.append(f"find_peaks[({sum(peaks)},)](a, b, peaks, num_warps=8)")
    else:
        body = """
        job = tl.program_id(0)
        if job < A_JOBS:
            split_block(job, a, a_terms, A_ELEMENTS)
        else:
            split_block(job - A_JOBS, b, b_terms, B_ELEMENTS)
        """
        arguments = ["a", "b", "a_terms", "b_terms"]
    functions.append(kernel("split", arguments, "The first programs split A, the others B.", body, constants))
    forward.append(f"split[({sum(jobs)},)]({', '.join(arguments)})")
    return functions, forward


def _split_block(split: _Split) -> str:
    """The function that splits a block of values into terms."""
    cast = f"tl.{split.dtype}"
    lines = ["place = job * BLOCK + tl.arange(0, BLOCK)"]
    lines.append("value = tl.load(values + place, mask=place < ELEMENTS, other=0.0)")
    if split.scaled:
        lines.append("value *= scale")
    for term in range(split.terms):
        more = f" + {term} * ELEMENTS" if term > 1 else " + ELEMENTS" if term else ""
        lines.append(f"term = value.to({cast})")
        lines.append(f"tl.store(terms{more} + place, term, mask=place < ELEMENTS)")
        if term < split.terms - 1:
            lines.append("value -= term.to(tl.float32)")
    scale = ["scale"] if split.scaled else []
    return kernel(
        "split_block",
        ["job", "values", *scale, "terms", "ELEMENTS: tl.constexpr"],
        f"A block of values as a sum of {split.terms} {split.dtype} terms.",
        "\n".join(lines),
        {"BLOCK": SPLIT_BLOCK},
    )


def _scales(constants: dict[str, int]) -> list[str]:
    """Kernels that find the power of two that scales an operand's largest element to 2**14."""
    peak = kernel(
        "peak_of_block",
        ["job", "values", "ELEMENTS: tl.constexpr"],
        "The largest absolute value of a block's finite numbers: others spoil their own row or column alone.",
        """
        place = job * BLOCK + tl.arange(0, BLOCK)
        size = tl.abs(tl.load(values + place, mask=place < ELEMENTS, other=0.0))
        return tl.max(tl.where(size < float("inf"), size, 0.0), axis=0)
        """,
        {"BLOCK": PEAK_BLOCK},
    )
    find = kernel(
        "find_peaks",
        ["a", "b", "peaks"],
        "The largest absolute value of each block of A, then of B.",
        """
        job = tl.program_id(0)
        if job < A_PEAKS:
            tl.store(peaks + job, peak_of_block(job, a, A_ELEMENTS))
        else:
            tl.store(peaks + job, peak_of_block(job - A_PEAKS, b, B_ELEMENTS))
        """,
        constants,
    )
    power = kernel(
        "power_of_two",
        ["peaks", "COUNT: tl.constexpr"],
        "The power of two that brings the largest element to 2**14, by its exponent's bits, and its inverse.",
        f"""
        block = tl.arange(0, {power_of_two(max(constants["A_PEAKS"], constants["B_PEAKS"]))})
        peak = tl.max(tl.load(peaks + block, mask=block < COUNT, other=0.0), axis=0)
        exponent = peak.to(tl.int32, bitcast=True) >> 23
        biased = tl.minimum(268 - exponent, 253)
        scale, inverse = biased << 23, (254 - biased) << 23
        return scale.to(tl.float32, bitcast=True), inverse.to(tl.float32, bitcast=True)
        """,
        {},
    )
    return [peak, find, power]


def _launch(workload: Workload, knobs: Knobs, split: _Split | None) -> list[str]:
    """The lines of `forward` that run the product."""
    s, constants = workload.sizes, _constants(workload, knobs)
    lines = []
    left, right = ("a_terms", "b_terms") if split else ("a", "b")
    if split is None:
        lines.append("a, b = a.contiguous(), b.contiguous()")
        lines.append(f"out = torch.empty(({s['M']}, {s['N']}), dtype=a.dtype, device=a.device)")
    if knobs["loads"] == "descriptors":
        lines.append(
            f"left = TensorDescriptor.from_tensor(a_terms, [{knobs['block_m']}, {knobs['block_k']}])"
        )
        lines.append(
            f"right = TensorDescriptor.from_tensor(b_terms, [{knobs['block_k']}, {knobs['block_n']}])"
        )
        left, right = "left", "right"
    tiles = constants["ROWS"] * constants["COLUMNS"]
    grid = f"({tiles},)"
    if knobs["persistent"]:
        lines.append("device = a.device")
        lines.append(
            "programs = torch.cuda.get_device_properties(device).multi_processor_count if a.is_cuda else 4"
        )
        grid = f"(min({tiles}, programs),)"
    arguments = [left, right, *(["scales"] if split and split.scaled else []), "out"]
    options = f"num_warps={knobs['warps']}, num_stages={knobs['stages']}"
    lines.append(f"multiply[{grid}]({', '.join(arguments)}, {options})")
    return [*lines, "return out"]
