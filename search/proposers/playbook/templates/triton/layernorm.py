"""Layer normalisation in Triton: from one program a row to rows split over many programs.

Blocks of a row give their mean and their sum of squared deviations, which merge exactly (Chan, Golub,
LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979): stable for any
mean, unlike a sum of squares.
"""

from __future__ import annotations

from search.proposers.playbook.move import Knob, Knobs, Move
from search.proposers.playbook.templates.scaffold import kernel_file
from search.proposers.playbook.templates.triton.pieces import (
    IMPORTS,
    ceil_div,
    indent,
    join,
    kernel,
    module,
    number,
    power_of_two,
    wide,
)
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

MOST_PARTS = 8192
"""The most parts of a row that a program merges."""


def _few_long_rows(workload: Workload, knobs: Knobs) -> bool:
    return workload.sizes["cols"] >= 4096


def _affine(workload: Workload, knobs: Knobs) -> bool:
    return bool(workload.sizes["affine"]) and workload.sizes["rows"] > 1


SPLIT: dict[str, tuple[Knob, ...]] = {"algorithm": ("split",)}

MOVES = (
    Move(
        name="larger blocks",
        text="Load more of the row in each step, with several independent 16-byte loads a lane, so that more"
        " bytes are in flight.",
        category=Category.LATENCY,
        gain=2.5,
        needs={"algorithm": ("row",)},
        varies={"block": (8192, 4096, 16384), "warps": (16, 8, 32)},
    ),
    Move(
        name="one pass of statistics",
        text="Find mean and variance in one pass: merge each block's mean and squared deviations into "
        "running ones, which saves one of three reads and stays exact for a large mean.",
        category=Category.COMPUTE,
        gain=1.3,
        needs={"algorithm": ("row",), "statistics": ("two passes",)},
        sets={"statistics": "merged"},
    ),
    Move(
        name="whole row",
        text="Hold the whole row in the registers of one program: one read, exact statistics in place, one "
        "write.",
        category=Category.MEMORY,
        gain=2.0,
        needs={"algorithm": ("row",)},
        sets={"algorithm": "whole"},
        varies={"warps": (8, 4, 16, 32)},
    ),
    Move(
        name="warps per row",
        text="Change how many warps share a row: fewer let more rows run side by side on a multiprocessor, "
        "more keep the registers of a long row from spilling.",
        category=Category.PARALLELISM,
        gain=1.1,
        needs={"algorithm": ("whole",)},
        varies={"warps": (4, 8, 16, 2)},
    ),
    Move(
        name="split rows",
        text="Split each row over many programs: one kernel leaves mean and squared deviations of every "
        "block, a second merges those of its row and normalises. A few long rows then fill the whole "
        "GPU instead of a few multiprocessors.",
        category=Category.PARALLELISM,
        gain=15.0,
        needs={"algorithm": ("row",)},
        applies=_few_long_rows,
        sets={"algorithm": "split"},
        varies={"block": (4096, 8192, 16384), "warps": (4, 8)},
    ),
    Move(
        name="block size",
        text="Change the block and the number of warps: more elements a lane keep more bytes in flight, "
        "fewer let more programs share a multiprocessor.",
        category=Category.PARALLELISM,
        gain=1.1,
        needs=SPLIT,
        varies={"block": (8192, 4096, 16384, 2048), "warps": (8, 4, 16)},
    ),
    Move(
        name="rows together",
        text="Number the programs so that the same columns of all rows run together: weight and bias of "
        "these columns are then read from memory once and come from the L2 cache for all other rows.",
        category=Category.MEMORY,
        gain=1.3,
        needs={**SPLIT, "order": ("rows",)},
        applies=_affine,
        sets={"order": "columns"},
    ),
    Move(
        name="weights in registers",
        text="Let each program normalise the same columns of several rows, so that their weight and bias are"
        " loaded once and stay in registers.",
        category=Category.MEMORY,
        gain=1.15,
        needs=SPLIT,
        applies=_affine,
        sets={"order": "columns"},
        varies={"rows_each": (4, 2, 8, 16), "apply_block": (2048, 4096, 1024)},
    ),
    Move(
        name="smaller blocks of output",
        text="Give the second kernel its own block size: it moves twice the bytes a column and merges the "
        "parts first, so the best size is another one.",
        category=Category.PARALLELISM,
        gain=1.05,
        needs=SPLIT,
        varies={"apply_block": (4096, 2048, 8192, 1024), "apply_warps": (4, 8)},
    ),
    Move(
        name="backwards",
        text="Run through the blocks in the opposite order when normalising: what the first kernel read last"
        " is still in the L2 cache.",
        category=Category.MEMORY,
        gain=1.06,
        needs={**SPLIT, "reverse": (False,)},
        sets={"reverse": True},
    ),
    Move(
        name="eviction hints",
        text="Let results stream past the caches and drop the input after its second read, so that the L2 "
        "cache keeps what is still to be read.",
        category=Category.MEMORY,
        gain=1.03,
        needs={"hints": (False,)},
        sets={"hints": True},
    ),
)


NAIVE: Knobs = {
    "algorithm": "row",
    "statistics": "two passes",
    "block": 1024,
    "warps": 4,
    "apply_block": 0,
    "apply_warps": 0,
    "order": "rows",
    "rows_each": 1,
    "reverse": False,
    "hints": False,
}
"""The direct translation."""


class LayerNorm:
    """The family of layer normalisations."""

    op = "layernorm"
    language = "triton"
    naive: Knobs = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Blocks must fit into registers; rows must divide among programs."""
        rows, cols = workload.sizes["rows"], workload.sizes["cols"]
        if workload.dtype not in ("float32", "float16", "bfloat16") or rows < 1 or cols < 1:
            return False
        threads, block = 32 * number(knobs, "warps"), number(knobs, "block")
        if knobs["algorithm"] != "split":
            tuned = ("apply_block", "apply_warps", "order", "rows_each", "reverse")
            if any(knobs[name] != self.naive[name] for name in tuned):
                return False
        if knobs["algorithm"] == "whole":
            return power_of_two(cols) <= 64 * threads and knobs["statistics"] == "two passes"
        if block > 32 * threads or block < threads or block > power_of_two(cols):
            return False
        if knobs["algorithm"] == "row":
            return True
        if knobs["statistics"] != "two passes":
            return False
        rows_each, applied = number(knobs, "rows_each"), _apply_block(knobs)
        if rows % rows_each or (rows_each > 1 and knobs["order"] != "columns"):
            return False
        lanes = 32 * _apply_warps(knobs)
        weights = workload.sizes["affine"] + workload.sizes["bias"]
        if applied < lanes or applied * (1 + (weights if rows_each > 1 else 0)) > 64 * lanes:
            return False
        return ceil_div(cols, block) <= MOST_PARTS

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        bodies = {"row": _row, "whole": _whole, "split": _split}
        functions, launches = bodies[str(knobs["algorithm"])](workload, knobs)
        lines = ["x = x.contiguous()"]
        lines += [f"weight = self.{workload.module}.weight.contiguous()"] if workload.sizes["affine"] else []
        lines += [f"bias = self.{workload.module}.bias.contiguous()"] if workload.sizes["bias"] else []
        lines += ["out = torch.empty_like(x)", *launches, "return out"]
        return kernel_file(
            summary=_summary(knobs),
            language=self.language,
            workload=workload,
            knobs=knobs,
            imports=IMPORTS,
            code=module(*functions),
            inputs=["x"],
            forward="\n".join(lines),
        )


TEMPLATE = LayerNorm()


def _summary(knobs: Knobs) -> str:
    how = {
        "row": "one program a row, block after block",
        "whole": "one program a row, the whole row in registers",
        "split": "rows split over many programs, statistics first",
    }[str(knobs["algorithm"])]
    return f"layernorm in Triton: {how}."


def _apply_block(knobs: Knobs) -> int:
    return number(knobs, "apply_block") or number(knobs, "block")


def _apply_warps(knobs: Knobs) -> int:
    return number(knobs, "apply_warps") or number(knobs, "warps")


def _constants(workload: Workload, knobs: Knobs) -> dict[str, int | float]:
    cols, block = workload.sizes["cols"], number(knobs, "block")
    return {
        "ROWS": workload.sizes["rows"],
        "COLS": cols,
        "BLOCK": block,
        "PARTS": ceil_div(cols, block),
        "ROWS_EACH": number(knobs, "rows_each"),
        "EPS": workload.eps,
    }


def _weights(workload: Workload) -> list[str]:
    return (["weight"] if workload.sizes["affine"] else []) + (["bias"] if workload.sizes["bias"] else [])


def _widen(workload: Workload) -> str:
    return "" if workload.dtype == "float32" else ".to(tl.float32)"


def _policy(knobs: Knobs, policy: str) -> str:
    return f', eviction_policy="{policy}"' if knobs["hints"] else ""


def _streamed(knobs: Knobs) -> str:
    return ', cache_modifier=".cs"' if knobs["hints"] else ""


def _result(workload: Workload) -> str:
    """The normalised value times weight plus bias, as an expression."""
    text = "(value - mean) * scale"
    text += " * tl.load(weight + place{mask})" if workload.sizes["affine"] else ""
    return text + (" + tl.load(bias + place{mask})" if workload.sizes["bias"] else "")


def _row(workload: Workload, knobs: Knobs) -> tuple[list[str], list[str]]:
    """One program per row: statistics in two passes or one, then the result."""
    cols, rows = workload.sizes["cols"], workload.sizes["rows"]
    ragged = cols % number(knobs, "block") != 0
    other = ", mask=place < COLS, other=0.0" if ragged else ""
    mask = ", mask=place < COLS" if ragged else ""
    index = wide("tl.program_id(0)", rows * cols)
    loop = "for start in range(0, COLS, BLOCK):\n    place = start + tl.arange(0, BLOCK)\n"
    load = f"value = tl.load(source + place{other}{{policy}}){_widen(workload)}"
    deviation = "tl.where(place < COLS, value - {0}, 0.0)" if ragged else "value - {0}"
    if knobs["statistics"] == "two passes":
        statistics = join(
            "total = 0.0",
            loop + indent(f"{load.format(policy='')}\ntotal += tl.sum(value, axis=0)"),
            "mean = total / COLS\nsquares = 0.0",
            loop
            + indent(
                f"{load.format(policy='')}\ndeviation = {deviation.format('mean')}\n"
                "squares += tl.sum(deviation * deviation, axis=0)"
            ),
        )
    else:
        count = "tl.minimum(BLOCK, COLS - start).to(tl.float32)" if ragged else "BLOCK"
        statistics = join(
            "mean = 0.0\nsquares = 0.0",
            loop
            + indent(
                f"""
                {load.format(policy="")}
                count = {count}
                block_mean = tl.sum(value, axis=0) / count
                deviation = {deviation.format("block_mean")}
                shift = block_mean - mean
                share = count / (start + count)
                squares += tl.sum(deviation * deviation, axis=0) + shift * shift * share * start
                mean += shift * share
                """
            ),
        )
    write = join(
        load.format(policy=_policy(knobs, "evict_first")),
        f"result = {_result(workload).format(mask=mask)}",
        f"tl.store(target + place, result{mask}{_streamed(knobs)})",
    )
    body = join(
        f"""
        source = x + {index} * COLS
        target = out + {index} * COLS
        """,
        statistics,
        "scale = 1.0 / tl.sqrt(squares / COLS + EPS)",
        loop + indent(write),
    )
    arguments = ["x", *_weights(workload), "out"]
    function = kernel("normalise", arguments, "One program: one row.", body, _constants(workload, knobs))
    return [function], [f"normalise[({rows},)]({', '.join(arguments)}, num_warps={knobs['warps']})"]


def _whole(workload: Workload, knobs: Knobs) -> tuple[list[str], list[str]]:
    """One program per row, which it keeps in registers."""
    cols, rows = workload.sizes["cols"], workload.sizes["rows"]
    ragged = power_of_two(cols) != cols
    other = ", mask=place < COLS, other=0.0" if ragged else ""
    mask = ", mask=place < COLS" if ragged else ""
    index = wide("tl.program_id(0)", rows * cols)
    deviation = "tl.where(place < COLS, value - mean, 0.0)" if ragged else "value - mean"
    body = join(
        f"""
        place = tl.arange(0, BLOCK)
        value = tl.load(x + {index} * COLS + place{other}{_policy(knobs, "evict_first")}){_widen(workload)}
        mean = tl.sum(value, axis=0) / COLS
        deviation = {deviation}
        scale = 1.0 / tl.sqrt(tl.sum(deviation * deviation, axis=0) / COLS + EPS)
        result = {_result(workload).format(mask=mask)}
        tl.store(out + {index} * COLS + place, result{mask}{_streamed(knobs)})
        """
    )
    arguments = ["x", *_weights(workload), "out"]
    constants = {**_constants(workload, knobs), "BLOCK": power_of_two(cols)}
    function = kernel("normalise", arguments, "One program: one row.", body, constants)
    return [function], [f"normalise[({rows},)]({', '.join(arguments)}, num_warps={knobs['warps']})"]


def _split(workload: Workload, knobs: Knobs) -> tuple[list[str], list[str]]:
    """Statistics of every block in one kernel; a second merges them and normalises."""
    rows, cols = workload.sizes["rows"], workload.sizes["cols"]
    constants = _constants(workload, knobs)
    parts = ceil_div(cols, number(knobs, "block"))
    blocks = ceil_div(cols, _apply_block(knobs))
    arguments = ["x", "parts", *_weights(workload), "out"]
    programs = blocks * (rows // number(knobs, "rows_each"))
    launches = [
        f"parts = torch.empty({2 * rows * parts}, device=x.device)",
        f"measure[({rows * parts},)](x, parts, num_warps={knobs['warps']})",
        f"normalise[({programs},)]({', '.join(arguments)}, num_warps={_apply_warps(knobs)})",
    ]
    functions = [_measure(workload, knobs, constants), _merge(workload, knobs, constants)]
    more = {**constants, "BLOCK": _apply_block(knobs), "BLOCKS": blocks}
    functions.append(kernel("normalise", arguments, _normalise_doc(knobs), _normalise(workload, knobs), more))
    return functions, launches


def _number(knobs: Knobs, block: str, row: str, count: str, rows: str, program: str) -> str:
    """Lines that turn the program's number into a block and a row."""
    if knobs["order"] == "columns":
        return f"{block}, {row} = {program} // {rows}, {program} % {rows}"
    return f"{row}, {block} = {program} // {count}, {program} % {count}"


def _measure(workload: Workload, knobs: Knobs, constants: dict[str, int | float]) -> str:
    """Mean and squared deviations of one block of one row."""
    cols, rows = workload.sizes["cols"], workload.sizes["rows"]
    ragged = cols % number(knobs, "block") != 0
    other = ", mask=place < COLS, other=0.0" if ragged else ""
    count = "tl.minimum(BLOCK, COLS - part * BLOCK)" if ragged else "BLOCK"
    deviation = "tl.where(place < COLS, value - mean, 0.0)" if ragged else "value - mean"
    body = join(
        _number(knobs, "part", "row", "PARTS", "ROWS", "tl.program_id(0)"),
        f"""
        place = part * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + {wide("row", rows * cols)} * COLS + place{other}){_widen(workload)}
        mean = tl.sum(value, axis=0) / {count}
        deviation = {deviation}
        tl.store(parts + row * PARTS + part, mean)
        tl.store(parts + (ROWS + row) * PARTS + part, tl.sum(deviation * deviation, axis=0))
        """,
    )
    doc = "One program: mean and sum of squared deviations of a block of one row."
    return kernel("measure", ["x", "parts"], doc, body, constants)


def _merge(workload: Workload, knobs: Knobs, constants: dict[str, int | float]) -> str:
    """Mean and scale of a row from its parts."""
    parts, cols = int(constants["PARTS"]), workload.sizes["cols"]
    padded = power_of_two(parts)
    mask = ", mask=part < PARTS, other=0.0" if padded > parts else ""
    block = number(knobs, "block")
    uneven = cols % block != 0
    count = "tl.minimum(BLOCK, COLS - part * BLOCK)" if uneven else "BLOCK"
    if padded > parts:
        count = f"tl.where(part < PARTS, {count}, 0)"
    body = join(
        f"""
        part = tl.arange(0, {padded})
        means = tl.load(parts + row * PARTS + part{mask})
        squares = tl.load(parts + (ROWS + row) * PARTS + part{mask})
        """,
        f"count = ({count}).to(tl.float32)" if "part" in count else "count = BLOCK",
        """
        mean = tl.sum(means * count, axis=0) / COLS
        shift = means - mean
        variance = tl.sum(squares + shift * shift * count, axis=0) / COLS
        return mean, 1.0 / tl.sqrt(variance + EPS)
        """,
    )
    return kernel("merge", ["parts", "row"], "Mean and scale of a row out of its parts.", body, constants)


def _normalise_doc(knobs: Knobs) -> str:
    if number(knobs, "rows_each") > 1:
        return "One program: a block of columns of ROWS_EACH rows, weights loaded once."
    return "One program: a block of columns of one row."


def _normalise(workload: Workload, knobs: Knobs) -> str:
    rows, cols, rows_each = workload.sizes["rows"], workload.sizes["cols"], number(knobs, "rows_each")
    ragged = cols % _apply_block(knobs) != 0
    other = ", mask=place < COLS, other=0.0" if ragged else ""
    mask = ", mask=place < COLS" if ragged else ""
    program = "tl.program_id(0)"
    if knobs["reverse"]:
        program = "program"
    source = f"x + {wide('row', rows * cols)} * COLS + place"
    target = f"out + {wide('row', rows * cols)} * COLS + place"
    factors = [
        f"{name[0]} = tl.load({name} + place{other}{_policy(knobs, 'evict_last')}){_widen(workload)}"
        for name in _weights(workload)
    ]
    result = "(value - mean) * scale"
    result += " * w" if workload.sizes["affine"] else ""
    result += " + b" if workload.sizes["bias"] else ""
    one = [
        f"value = tl.load({source}{other}{_policy(knobs, 'evict_first')}){_widen(workload)}",
        "mean, scale = merge(parts, row)",
        f"tl.store({target}, {result}{mask}{_streamed(knobs)})",
    ]
    groups = "(ROWS // ROWS_EACH)" if rows_each > 1 else "ROWS"
    first = "group" if rows_each > 1 else "row"
    head = [
        "program = tl.num_programs(0) - 1 - tl.program_id(0)" if knobs["reverse"] else "",
        _number(knobs, "block", first, "BLOCKS", groups, program),
        "place = block * BLOCK + tl.arange(0, BLOCK)",
        *factors,
    ]
    if rows_each == 1:
        return join(*head, *one)
    loop = "for row in range(group * ROWS_EACH, (group + 1) * ROWS_EACH):\n" + indent("\n".join(one))
    return join(*head, loop)
