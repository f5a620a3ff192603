"""Reductions, normalisations and chains of both in Triton, over any dimensions, strides and types.

A program has ROWS rows. It runs over them in tiles of ROWS x BLOCK elements; each place of a tile gathers for
itself, and the places of a row are combined at the end. It keeps the first HELD elements of each row in
registers. Long rows that are few are split over programs (`split.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

from search.proposers.playbook.formulas import called_in
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import names_of
from search.proposers.playbook.passes import Rows
from search.proposers.playbook.templates.operator_pieces import (
    BROADCAST,
    CONTIGUOUS,
    NESTS,
    REDUCED,
    SPREAD,
    rows_of,
    rows_plan,
)
from search.proposers.playbook.templates.triton import split
from search.proposers.playbook.templates.triton.operator_pieces import known_signatures, operator_kernel
from search.proposers.playbook.templates.triton.pieces import number
from search.proposers.playbook.templates.triton.row_lines import RowLines
from search.proposers.playbook.templates.triton.row_moves import MOVES, NAIVE
from search.proposers.playbook.workload import Signature, Workload

MOST_WHOLE = 16384
"""The most elements of a tile of whole rows."""
BLOCKS = f'''
def blocks(count, rows, warps, block, fit, whole, held):
    """The block's size for rows of `count` elements, and how many of these a program keeps in registers."""
    power = triton.next_power_of_2(count)
    if whole and power * rows <= min({MOST_WHOLE}, 4096 * warps):
        return power, power
    return (min(block, power) if fit else block), held if held + block <= count else 0
'''


class RowsTemplate:
    """The family of reductions, normalisations and chains of both."""

    op = "rows"
    language = "triton"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Tiles must fit into the registers of a program."""
        rows, block, held = (number(knobs, name) for name in ("rows", "block", "held"))
        threads = 32 * number(knobs, "warps")
        fits = rows * block <= min(MOST_WHOLE, 128 * threads)
        # A multiprocessor has 65,536 registers; a lane needs some for itself.
        small = held == 0 or rows * (held + block) // threads <= min(255, 65536 // threads) - 20
        return fits and small and bool(_signatures(workload))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, names = rows_of(workload), names_of(workload)
        lines = RowLines(found, knobs, len(names))
        what = workload.operator or "a chain with reductions"
        return operator_kernel(
            summary=f"{what} in Triton: {knobs['rows']} rows a program.",
            workload=workload,
            knobs=knobs,
            chosen=_signatures(workload),
            functions=[*lines.merges(), _kernel(found, lines), *split.kernels(lines)],
            helpers=[
                BROADCAST,
                SPREAD,
                CONTIGUOUS,
                NESTS,
                REDUCED,
                BLOCKS,
                split.PARTS,
                split.launches(lines),
            ],
            plan=f"{rows_plan(found)}\n{_planned(knobs)}",
            forward=_forward(names, found, knobs),
            inputs=names,
        )


TEMPLATE = RowsTemplate()


def _signatures(workload: Workload) -> list[Signature]:
    return known_signatures(workload, called_in(" ".join(rows_of(workload).texts)))


def _planned(knobs: Knobs) -> str:
    """The end of the function `plan`."""
    wide = "is_wide(kept) or is_wide(inner)" if knobs["narrow"] else "True"
    given = ", ".join(str(knobs[name]) for name in ("rows", "warps", "block", "fit", "whole", "held"))
    return f"""    counts = math.prod(each[0] for each in kept), math.prod(each[0] for each in inner)
    block, held = blocks(counts[1], {given})
    parts = parts_of(counts, {knobs["rows"]}, block)
    return result, ones, counts, [*zip(*kept), *zip(*inner)], {wide}, block, held, parts
"""


def _kernel(found: Rows, lines: RowLines) -> str:
    body = [
        "rows = program * ROWS + tl.arange(0, ROWS)",
        "inside = (rows < kept_count)[:, None]",
        *lines.sources(range(lines.count)),
        *lines.hold(),
    ]
    rounds = list(lines.rounds)
    gathered: set[str] = set()
    for name, step in found.steps.items():
        if not isinstance(step, str):
            while name not in gathered:
                gathered |= {*rounds[0].names}
                body += lines.gather(rounds.pop(0))
        elif name not in found.elements:
            body.append(lines.value(name))
    body += lines.further()
    body += lines.element() if found.kept else lines.write()
    return lines.kernel("rows_of", "One program: ROWS rows.", body, ["STREAMED", "HELD"])


def _forward(names: Sequence[str], found: Rows, knobs: Knobs) -> str:
    shape, stride = (
        f"() if each is None else each.{what}" if found.optional else f"each.{what}"
        for what in ("shape", "stride()")
    )
    scalars = "".join(f"float({each}), " for each in found.scalars.values())
    device = f"device={names[0]}.device"
    more = f", *(torch.empty(ones, dtype=each, {device}) for each in dtypes[1:])" if found.also else ","
    return f"""
tensors = ({", ".join(names)},)
shapes, strides = tuple({shape} for each in tensors), tuple({stride} for each in tensors)
shape, ones, counts, layout, wide, block, held, parts = plan(shapes, strides, {found.dims}, {found.keepdim})
outs = (torch.empty(shape, dtype=dtypes[0], {device}){more})
given = (*outs, *tensors, {scalars}*counts)
if parts[0] > 1:
    in_parts(given, outs[0], counts, parts, layout, compute, wide, block)
else:
    rows_of[(triton.cdiv(counts[0], {knobs["rows"]}),)](
        *given, *layout, COMPUTE=compute, KEPT=len(layout[0]), REDUCED=len(layout[-1]), WIDE=wide,
        ROWS={knobs["rows"]}, BLOCK=block, STREAMED=held < counts[1], HELD=held, num_warps={knobs["warps"]},
    )
return {"outs" if found.also else "outs[0]"}
"""
