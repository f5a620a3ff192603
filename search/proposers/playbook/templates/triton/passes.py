"""Passes over the elements that a reduction or a normalisation reduces, in Triton, and the moves for them.

A program has ROWS rows of reduced elements, and runs over them in blocks: a tile of ROWS x BLOCK elements, in
each place of which is gathered before the places of a row are combined.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from search.proposers.playbook.formulas import OPERANDS, called_in, in_language
from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.passes import Pass, Rows
from search.proposers.playbook.templates.operator_moves import MERGE, NARROW
from search.proposers.playbook.templates.triton.pieces import number
from search.proposers.playbook.workload import Signature, Workload
from search.records.tree import Category

MOST_WHOLE = 16384
"""Elements that a program holds in registers."""
MOVES = (
    MERGE,
    NARROW,
    Move(
        name="whole rows",
        text="Hold a short row in registers: one read for all passes, and none of the loops' overhead.",
        category=Category.MEMORY,
        gain=1.4,
        sets={"whole": True, "fit": True},
    ),
    Move(
        name="fitting blocks",
        text="Make the block of a short row as small as the row: no lane computes what is masked.",
        category=Category.PARALLELISM,
        gain=1.1,
        sets={"fit": True},
    ),
    Move(
        name="several rows",
        text="Give each program several rows: short ones fill its lanes together, and neighbours share the "
        "cache lines where rows are not contiguous.",
        category=Category.PARALLELISM,
        gain=1.15,
        varies={"rows": (4, 2, 8, 16)},
    ),
    Move(
        name="rows to a warp",
        text="Give a program of one warp several short rows, about a thousand elements together: a row is "
        "combined within the warp, and nobody waits at a barrier.",
        category=Category.PARALLELISM,
        gain=1.3,
        sets={"whole": True, "fit": True, "warps": 1},
        varies={"rows": (4, 2, 1, 8)},
    ),
    Move(
        name="larger blocks",
        text="Load more of a row at once, several elements for each lane, so that enough loads are in flight "
        "to hide the latency of memory.",
        category=Category.LATENCY,
        gain=1.2,
        varies={"block": (1024, 512, 2048, 4096), "warps": (4, 8, 2, 1)},
    ),
)
NAIVE: Knobs = {
    "block": 256,
    "rows": 1,
    "warps": 4,
    "fit": False,
    "whole": False,
    "merged": False,
    "narrow": False,
    "remembered": True,
}
BLOCKS = '''
def blocks(count, rows, block, fit, whole):
    """The block's size for rows of so many elements, and whether it is the whole row."""
    power = triton.next_power_of_2(count)
    if whole and power * rows <= 16384:
        return power, True
    return (min(block, power) if fit else block), False
'''


class PassesTemplate:
    """What the families with passes share."""

    language = "triton"
    naive = NAIVE
    moves = MOVES

    def signatures(self, workload: Workload) -> list[Signature]:
        """Those of the workload that a kernel can have."""
        raise NotImplementedError

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """There is a signature that it can have, and a tile fits into the registers of a program."""
        most = min(MOST_WHOLE, 4096 * number(knobs, "warps"))
        return number(knobs, "rows") * number(knobs, "block") <= most and bool(self.signatures(workload))


def planned(result: str, knobs: Knobs, *, parts: bool = False) -> str:
    """The end of a function `plan`, which returns a result, numbers of rows and of their elements, sizes and
    strides of the nests `kept` and `inner`, whether places are beyond 32 bits, the block's size, whether it
    is a whole row, and, with `parts`, the number and the size of the parts into which a row is split."""
    split = f", parts_of(counts, {knobs['rows']}, block)" if parts else ""
    wide = "is_wide(kept) or is_wide(inner)" if knobs["narrow"] else "True"
    return f"""    counts = math.prod(each[0] for each in kept), math.prod(each[0] for each in inner)
    block, whole = blocks(counts[1], {knobs["rows"]}, {knobs["block"]}, {knobs["fit"]}, {knobs["whole"]})
    return {result}, counts, [*zip(*kept), *zip(*inner)], {wide}, block, whole{split}
"""


def called(several: Sequence[Pass]) -> set[str]:
    """The functions of formulas that the passes call."""
    return called_in(" ".join(f"{each.step} {each.merge} {each.finish}" for each in several))


def merges(several: Sequence[Pass]) -> list[str]:
    """The functions `merge_0`, `merge_1`, …, which combine what two places gathered."""
    return [
        f"@triton.jit\ndef merge_{place}(t, u):\n    return {in_language(each.merge, 1)}"
        for place, each in enumerate(several)
    ]


def passes(several: Sequence[Pass], names: Sequence[str]) -> str:
    """The lines that leave the passes' results in `m` and `r`, a column each; before them stand `rows`, the
    indices of the rows, and `source`, where they begin."""
    lines = [f"{name} = tl.cast({name}_given, COMPUTE)" for name in names]
    lines += ["n = tl.cast(reduced_count, COMPUTE)", "inside = (rows < kept_count)[:, None]"]
    lines += ["if WHOLE:", "    first = 0", *textwrap.indent(LOAD, "    ").splitlines()]
    for place, each in enumerate(several):
        lines += _pass(place, each)
    return "\n".join(lines)


def block_at(first: str, end: str = "reduced_count") -> list[str]:
    """The lines that leave in `index` which elements of a row a block has, and in `here` which are there."""
    return [
        f"index = {first} + tl.arange(0, BLOCK)",
        "if WIDE:",
        "    index = index.to(tl.int64)",
        f"here = inside & (index < {end})[None, :]",
    ]


LOAD = "\n".join(
    [
        *block_at("first"),
        "at = source + places(index, reduced_sizes, reduced_x, REDUCED)[None, :]",
        "v = tl.load(x + at, mask=here, other=0).to(COMPUTE)",
    ]
)
"""The lines that load the block at `first`."""
LIMITS = {
    "lowest": 'float("-inf") if COMPUTE == tl.float32 else -9223372036854775808',
    "highest": 'float("inf") if COMPUTE == tl.float32 else 9223372036854775807',
}


def loads(operands: Sequence[int], first: str, end: str = "reduced_count") -> list[str]:
    """The lines that load a block of operands."""
    lines = block_at(first, end)
    for n in operands:
        place = f"source{n} + places(index, reduced_sizes, reduced_x{n}, REDUCED)[None, :]"
        lines.append(f"{OPERANDS[n]} = tl.load(x{n} + {place}, mask=here, other=0).to(COMPUTE)")
    return lines


def steps(found: Rows, text: str) -> list[str]:
    """The lines that make what a text is over."""
    several = [(each, found.steps[each]) for each in found.needed(text) if each not in OPERANDS]
    return [f"{name} = tl.cast({in_language(str(step), 1)}, COMPUTE)" for name, step in several]


def indented(lines: Sequence[str]) -> list[str]:
    """Lines moved right by one level."""
    return [f"    {each}" for each in lines]


def _pass(place: int, which: Pass) -> list[str]:
    start = LIMITS.get(which.start, which.start)
    step = f"t = tl.where(here, {in_language(which.step, 1)}, t)"
    return [
        f"start = {start}",
        "t = tl.full([ROWS, BLOCK], start, COMPUTE)",
        "if WHOLE:",
        f"    {step}",
        "else:",
        "    for first in range(0, reduced_count, BLOCK):",
        *textwrap.indent(f"{LOAD}\n{step}", " " * 8).splitlines(),
        f"t = tl.reduce(t, 1, merge_{place}, keep_dims=True)",
        f"{'mr'[place]} = {in_language(which.finish, 1)}",
    ]
