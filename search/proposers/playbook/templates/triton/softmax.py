"""Softmax over rows in Triton: from three passes of a program over its row to one read and one write.

The online form keeps a running maximum and rescales the sum where it grows (Milakov, Gimelshein: "Online
normalizer calculation for softmax", 2018), here in every lane by itself, so that lanes meet once a row.
"""

from __future__ import annotations

from search.proposers.playbook.move import Knob, Knobs, Move
from search.proposers.playbook.templates.scaffold import kernel_file
from search.proposers.playbook.templates.triton.pieces import (
    IMPORTS,
    SHARED_BYTES,
    indent,
    join,
    kernel,
    number,
    power_of_two,
    powers,
    wide,
)
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

LOG2E = 1.4426950408889634
LOWEST = -1e38
"""The start of a running maximum: finite, so that minus infinity in the input does not become NaN."""
LANE_ELEMENTS = 128
"""Elements of a tile's row for each warp: 16 bytes a lane."""


LOOPS: dict[str, tuple[Knob, ...]] = {"algorithm": ("three passes", "online")}
ONLINE: dict[str, tuple[Knob, ...]] = {"algorithm": ("online",)}

MOVES = (
    Move(
        name="online",
        text="Find maximum and sum in one pass: keep a running maximum and rescale the running sum whenever "
        "it grows, which saves one of three reads of the row.",
        category=Category.MEMORY,
        gain=1.3,
        needs={"algorithm": ("three passes",)},
        sets={"algorithm": "online"},
    ),
    Move(
        name="lanes",
        text="Let every lane keep its own maximum and sum, and combine them once at the end of the "
        "row, instead of a reduction over the whole program, with its barriers, in every step.",
        category=Category.COMPUTE,
        gain=1.4,
        needs={**LOOPS, "reduce": ("block",)},
        sets={"reduce": "lanes"},
    ),
    Move(
        name="online in lanes",
        text="Make it one statistics pass and one output pass: each lane keeps its own running maximum and "
        "rescaled sum over the row, in tiles of several 16-byte loads, and lanes are "
        "combined once at the end.",
        category=Category.CONTROL_FLOW,
        gain=2.0,
        needs={"algorithm": ("three passes",)},
        sets={"algorithm": "online", "reduce": "lanes"},
        varies={"block": (8192, 16384, 4096), "warps": (16, 8, 32)},
    ),
    Move(
        name="whole row",
        text="Hold the whole row in the registers of one program: one read, reductions in place, one write.",
        category=Category.MEMORY,
        gain=1.5,
        needs=LOOPS,
        sets={"algorithm": "whole"},
        varies={"warps": (32, 16, 8)},
    ),
    Move(
        name="larger blocks",
        text="Load more of the row in each step, several independent 16-byte loads a lane, so that enough "
        "bytes are in flight to hide the latency of memory.",
        category=Category.LATENCY,
        gain=1.3,
        needs=LOOPS,
        varies={"block": (8192, 4096, 16384, 2048), "warps": (8, 16, 32, 4)},
    ),
    Move(
        name="backwards",
        text="Run through the row backwards when the results are written: what the first pass read last is "
        "still in the first-level or the L2 cache, so most of the second read never reaches memory.",
        category=Category.MEMORY,
        gain=1.25,
        needs={**ONLINE, "order": ("forward",)},
        sets={"order": "backward"},
    ),
    Move(
        name="keep in registers",
        text="Keep part of the row in registers between the passes, as many elements as the register file of"
        " a multiprocessor has room for, and read only the rest again, mostly from the first-level "
        "cache.",
        category=Category.MEMORY,
        gain=1.2,
        needs={**ONLINE, "reduce": ("lanes",)},
        sets={"order": "backward"},
        varies={"kept": (32768, 16384, 49152), "warps": (16, 32), "block": (8192, 16384)},
    ),
    Move(
        name="occupancy",
        text="Change how many warps share a row: more lanes keep more bytes in flight, fewer let several "
        "rows share a multiprocessor, so that one's loads overlap with another's reductions.",
        category=Category.PARALLELISM,
        gain=1.1,
        varies={"warps": (16, 8, 32, 4)},
    ),
    Move(
        name="exp2",
        text="Fold the factor log2(e) into one fused multiply-add with the subtraction of the maximum and "
        "use exp2, the instruction that the hardware has.",
        category=Category.COMPUTE,
        gain=1.03,
        needs={"exp": ("exp",)},
        sets={"exp": "exp2"},
    ),
    Move(
        name="eviction hints",
        text="Tell the caches what will be needed again: keep the row after its first read, drop it after "
        "its second, and let results stream past.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"hints": (False,)},
        sets={"hints": True},
    ),
    Move(
        name="pipeline",
        text="Let asynchronous copies fetch the next blocks of the row into shared memory while this one is "
        "summed.",
        category=Category.LATENCY,
        gain=1.05,
        needs={**LOOPS, "stages": (1,)},
        varies={"stages": (3, 2, 4)},
    ),
)


NAIVE: Knobs = {
    "algorithm": "three passes",
    "reduce": "block",
    "block": 1024,
    "kept": 0,
    "order": "forward",
    "exp": "exp",
    "hints": False,
    "warps": 4,
    "stages": 1,
}
"""The direct translation."""


class Softmax:
    """The family of softmax kernels."""

    op = "softmax"
    language = "triton"
    naive: Knobs = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Blocks must fit into registers, staged ones into shared memory."""
        cols, threads = workload.sizes["cols"], 32 * number(knobs, "warps")
        block, kept = number(knobs, "block"), number(knobs, "kept")
        if workload.dtype not in ("float32", "float16", "bfloat16") or cols < 1 or workload.sizes["rows"] < 1:
            return False
        if knobs["algorithm"] == "whole":
            return kept == 0 and knobs["reduce"] == "block" and power_of_two(cols) <= 64 * threads
        if block > 32 * threads or block < threads or kept % LANE_ELEMENTS:
            return False
        if kept and (knobs["algorithm"] != "online" or knobs["reduce"] != "lanes"):
            return False
        if kept and (kept % _wide_lanes(knobs) or kept + block > cols or (cols - kept) % block):
            return False
        # A multiprocessor has 65,536 registers; a lane needs some for itself.
        if (kept + block) // threads > min(255, 65536 // threads) - 20:
            return False
        if knobs["algorithm"] == "three passes" and knobs["order"] == "backward":
            return False
        return number(knobs, "stages") == 1 or number(knobs, "stages") * block * 4 <= SHARED_BYTES

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        rows, cols = workload.sizes["rows"], workload.sizes["cols"]
        constants: dict[str, int | float] = {"COLS": cols, "BLOCK": number(knobs, "block")}
        bodies = {"three passes": _three_passes, "online": _online, "whole": _whole}
        if knobs["algorithm"] == "whole":
            constants["BLOCK"] = power_of_two(cols)
        constants["LANES"] = _lanes(knobs)
        constants["DEPTH"] = number(knobs, "block") // _lanes(knobs)
        constants |= {"LOG2E": LOG2E, "LOWEST": LOWEST}
        index = wide("tl.program_id(0)", rows * cols)
        body = join(
            f"""
            source = x + {index} * COLS
            target = out + {index} * COLS
            """,
            bodies[str(knobs["algorithm"])](workload, knobs),
        )
        doc = "One program: one row."
        forward = "\n".join(
            [
                "x = x.contiguous()",
                "out = torch.empty_like(x)",
                f"softmax[({rows},)](x, out, num_warps={knobs['warps']})",
                "return out",
            ]
        )
        return kernel_file(
            summary=_summary(knobs),
            language=self.language,
            workload=workload,
            knobs=knobs,
            imports=IMPORTS,
            code=kernel("softmax", ["x", "out"], doc, body, constants),
            inputs=["x"],
            forward=forward,
        )


TEMPLATE = Softmax()


def _summary(knobs: Knobs) -> str:
    how = {
        "three passes": "three passes over the row: maximum, sum, result",
        "online": "one pass for maximum and sum, one for the result",
        "whole": "the whole row in registers",
    }[str(knobs["algorithm"])]
    if number(knobs, "kept"):
        how += f", {knobs['kept']} elements kept in registers between them"
    return f"softmax in Triton: one program a row, {how}."


def _lanes(knobs: Knobs) -> int:
    return min(number(knobs, "block"), LANE_ELEMENTS * number(knobs, "warps"))


def _exp(knobs: Knobs, value: str, peak: str) -> str:
    """exp(value - peak) as an expression; with exp2 the maximum is in units of log(2)."""
    if knobs["exp"] == "exp2":
        return f"tl.exp2(tl.fma({value}, LOG2E, -{peak}))"
    return f"tl.exp({value} - {peak})"


def _ratio(knobs: Knobs, lower: str, higher: str) -> str:
    """exp(lower - higher) of two maxima."""
    return f"tl.{'exp2' if knobs['exp'] == 'exp2' else 'exp'}({lower} - {higher})"


def _unit(knobs: Knobs) -> str:
    """The factor that converts an element to the unit of the maxima."""
    return " * LOG2E" if knobs["exp"] == "exp2" else ""


def _tiled(knobs: Knobs) -> bool:
    """Whether a block is a tile with several elements for each lane."""
    return knobs["reduce"] == "lanes" and number(knobs, "block") > _lanes(knobs)


def _place(knobs: Knobs) -> str:
    """The line that sets `place`: where a block's elements are."""
    if _tiled(knobs):
        return "place = tl.arange(0, DEPTH)[:, None] * LANES + tl.arange(0, LANES)[None, :]"
    return "place = tl.arange(0, BLOCK)"


def _loop(knobs: Knobs, ends: str = "0, COLS, BLOCK") -> str:
    stages = number(knobs, "stages")
    return (
        f"for start in tl.range({ends}, num_stages={stages}):"
        if stages > 1
        else f"for start in range({ends}):"
    )


def _masked(columns: int, knobs: Knobs) -> bool:
    return columns % number(knobs, "block") != 0


def _load(workload: Workload, knobs: Knobs, columns: int, last: bool) -> str:
    """An expression that loads the block at `start`, as float32."""
    mask = ', mask=start + place < COLS, other=float("-inf")' if _masked(columns, knobs) else ""
    policy = f', eviction_policy="{"evict_first" if last else "evict_last"}"' if knobs["hints"] else ""
    return f"tl.load(source + start + place{mask}{policy})" + _widen(workload)


def _widen(workload: Workload) -> str:
    return "" if workload.dtype == "float32" else ".to(tl.float32)"


def _store(knobs: Knobs, columns: int) -> str:
    mask = ", mask=start + place < COLS" if _masked(columns, knobs) else ""
    return f"tl.store(target + start + place, result{mask}{_streamed(knobs)})"


def _streamed(knobs: Knobs) -> str:
    return ', cache_modifier=".cs"' if knobs["hints"] else ""


def _three_passes(workload: Workload, knobs: Knobs) -> str:
    cols, lanes = workload.sizes["cols"], knobs["reduce"] == "lanes"
    tiled = _tiled(knobs)
    within = (
        (lambda kind, value: f"tl.{kind}({value}, axis=0)")
        if tiled or not lanes
        else (lambda kind, value: value)
    )
    first = _load(workload, knobs, cols, False)
    shape = "[LANES]" if lanes else "[1]"
    start = [
        f"peak = tl.full({shape}, LOWEST, tl.float32)" if lanes else "peak = LOWEST",
        f"total = tl.zeros({shape}, tl.float32)" if lanes else "total = 0.0",
    ]
    return join(
        _place(knobs),
        start[0],
        f"{_loop(knobs)}\n    value = {first}\n    peak = tl.maximum(peak, {within('max', 'value')})",
        "peak = tl.max(peak, axis=0)" if lanes else "",
        "peak *= LOG2E" if _unit(knobs) else "",
        start[1],
        f"{_loop(knobs)}\n    value = {first}\n    total += {within('sum', _exp(knobs, 'value', 'peak'))}",
        "total = tl.sum(total, axis=0)" if lanes else "",
        _write(workload, knobs, cols),
    )


def _write(workload: Workload, knobs: Knobs, columns: int) -> str:
    """The last pass, forward or backward."""
    inner = [
        f"value = {_load(workload, knobs, columns, True)}",
        f"result = {_exp(knobs, 'value', 'peak')} * scale",
        _store(knobs, columns),
    ]
    loop = _loop(knobs, _streamed_ends(workload, knobs))
    if knobs["order"] == "backward":
        last = (columns - 1) // number(knobs, "block") * number(knobs, "block")
        loop = loop.replace("start", "back")
        inner.insert(0, f"start = {last} - back")
    return join("scale = 1.0 / total", loop + "\n" + indent("\n".join(inner)))


def _streamed_ends(workload: Workload, knobs: Knobs) -> str:
    """The range of the part of a row that is not kept in registers, its beginning."""
    kept = number(knobs, "kept")
    return f"0, {workload.sizes['cols'] - kept}, BLOCK" if kept else "0, COLS, BLOCK"


def _online(workload: Workload, knobs: Knobs) -> str:
    kept, tiled = number(knobs, "kept"), _tiled(knobs)
    streamed = workload.sizes["cols"] - kept
    load = _load(workload, knobs, streamed, False)
    if knobs["reduce"] != "lanes":
        return _online_by_blocks(workload, knobs, load)
    above = "tl.max(value, axis=0)" if tiled else "value"
    summed = _exp(knobs, "value", "higher[None, :]" if tiled else "higher")
    step = f"""
    value = {load}
    higher = tl.maximum(peak, {above}{_unit(knobs)})
    total = total * {_ratio(knobs, "peak", "higher")} + {f"tl.sum({summed}, axis=0)" if tiled else summed}
    peak = higher
    """
    pieces = powers(kept // LANE_ELEMENTS // number(knobs, "warps"), smallest=1) if kept else []
    keep, merge, finish = [], [], []
    for index, (start, depth) in enumerate(pieces):
        first = streamed + start * _wide_lanes(knobs)
        keep += [
            f"place{index} = {first} + tl.arange(0, {depth})[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]",
            f"kept{index} = tl.load(source + place{index}"
            + (', eviction_policy="evict_first"' if knobs["hints"] else "")
            + f"){_widen(workload)}",
        ]
        merge += [f"highest = tl.maximum(highest, tl.max(tl.max(kept{index}, axis=0), axis=0){_unit(knobs)})"]
        finish += [
            f"kept{index} = {_exp(knobs, f'kept{index}', 'highest')}",
            f"total += tl.sum(tl.sum(kept{index}, axis=0), axis=0)",
        ]
    final = [
        "highest = tl.max(peak, axis=0)",
        *merge,
        f"total = tl.sum(total * {_ratio(knobs, 'peak', 'highest')}, axis=0)",
        *finish,
        "peak = highest",
    ]
    stores = [
        f"tl.store(target + place{index}, kept{index} * scale{_streamed(knobs)})"
        for index in range(len(pieces))
    ]
    text = join(
        _place(knobs),
        *keep,
        "peak = tl.full([LANES], LOWEST, tl.float32)\ntotal = tl.zeros([LANES], tl.float32)",
        _loop(knobs, _streamed_ends(workload, knobs)) + "\n" + indent(step),
        *final,
        _write(workload, knobs, streamed),
        *stores,
    )
    return text.replace("WIDTH", str(_wide_lanes(knobs)))


def _online_by_blocks(workload: Workload, knobs: Knobs, load: str) -> str:
    """The online algorithm with a reduction of every block."""
    step = f"""
    value = {load}
    higher = tl.maximum(peak, tl.max(value, axis=0){_unit(knobs)})
    total = total * {_ratio(knobs, "peak", "higher")} + tl.sum({_exp(knobs, "value", "higher")}, axis=0)
    peak = higher
    """
    return join(
        _place(knobs),
        "peak = LOWEST\ntotal = 0.0",
        _loop(knobs) + "\n" + indent(step),
        _write(workload, knobs, workload.sizes["cols"]),
    )


def _wide_lanes(knobs: Knobs) -> int:
    return LANE_ELEMENTS * number(knobs, "warps")


def _whole(workload: Workload, knobs: Knobs) -> str:
    cols = workload.sizes["cols"]
    ragged = power_of_two(cols) != cols
    mask = ', mask=place < COLS, other=float("-inf")' if ragged else ""
    inside = ", mask=place < COLS" if ragged else ""
    policy = ', eviction_policy="evict_first"' if knobs["hints"] else ""
    return join(
        f"""
        place = tl.arange(0, BLOCK)
        value = tl.load(source + place{mask}{policy}){_widen(workload)}
        peak = tl.max(value, axis=0){_unit(knobs)}
        value = {_exp(knobs, "value", "peak")}
        scale = 1.0 / tl.sum(value, axis=0)
        tl.store(target + place, value * scale{inside}{_streamed(knobs)})
        """
    )
