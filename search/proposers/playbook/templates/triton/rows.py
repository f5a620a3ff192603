"""Element-wise operators with reductions among them over the same dimensions, in Triton: softmax of what is
scaled and masked, a normalisation of a sum, RMS norm that is written out, a loss. Rows that are long and few
are split over programs (`split.py`)."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from search.proposers.playbook.formulas import OPERANDS, called_in, in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import names_of
from search.proposers.playbook.passes import Pass, Rows
from search.proposers.playbook.templates.operator_pieces import (
    BROADCAST,
    CONTIGUOUS,
    NESTS,
    SPREAD,
    rows_of,
    rows_plan,
)
from search.proposers.playbook.templates.triton import passes, split
from search.proposers.playbook.templates.triton.operator_pieces import known_signatures, operator_kernel
from search.proposers.playbook.workload import Signature, Workload


class RowsTemplate(passes.PassesTemplate):
    """The family of chains with reductions."""

    op = "rows"

    def signatures(self, workload: Workload) -> list[Signature]:
        """See `PassesTemplate`."""
        return known_signatures(workload, called_in(" ".join(rows_of(workload).texts)))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, names = rows_of(workload), names_of(workload)
        gathers = [each for each in found.steps.values() if isinstance(each, Pass)]
        laid = ["out", *(f"x{n}" for n in range(len(names)))]
        return operator_kernel(
            summary=f"a chain with reductions in Triton: {knobs['rows']} rows a program.",
            workload=workload,
            knobs=knobs,
            chosen=self.signatures(workload),
            functions=[*passes.merges(gathers), _kernel(found, len(names)), *split.kernels(found, laid)],
            helpers=[
                BROADCAST,
                SPREAD,
                CONTIGUOUS,
                NESTS,
                passes.BLOCKS,
                split.PARTS,
                split.launches(found, knobs),
            ],
            plan=f"{rows_plan(found)}\n{passes.planned('result', knobs, parts=True)}",
            forward=_forward(names, knobs),
            inputs=names,
        )


TEMPLATE = RowsTemplate()


def _kernel(found: Rows, count: int) -> str:
    tensors = ["out", *(f"x{n}" for n in range(count))]
    strides = [f"{nest}_{name}" for nest in ("kept", "reduced") for name in tensors]
    sources = [f"source{n} = places(rows, kept_sizes, kept_x{n}, KEPT)[:, None]" for n in range(count)]
    lines = [*sources, *_body(found, count)]
    return f'''
@triton.jit
def rows_of(
    {", ".join(tensors)}, kept_count, reduced_count,
    kept_sizes, {", ".join(strides[: count + 1])},
    reduced_sizes, {", ".join(strides[count + 1 :])},
    COMPUTE: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):
    """One program: ROWS rows."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    rows = program * ROWS + tl.arange(0, ROWS)
    inside = (rows < kept_count)[:, None]
    n = tl.cast(reduced_count, COMPUTE)
    target = places(rows, kept_sizes, kept_out, KEPT)[:, None]
{textwrap.indent(chr(10).join(lines), "    ")}
'''


def _body(found: Rows, count: int) -> list[str]:
    """The lines of a program."""
    lines = ["if WHOLE:", *passes.indented(passes.loads(range(count), "0"))]
    gathers = 0
    for name, step in found.steps.items():
        if isinstance(step, Pass):
            lines += _gather(found, name, step, gathers)
            gathers += 1
        elif name not in found.elements:
            lines.append(f"{name} = tl.cast({in_language(step, 1)}, COMPUTE)")
    if found.kept:
        for n in found.operands(found.last):
            lines.append(f"{OPERANDS[n]} = tl.load(x{n} + source{n}, mask=inside, other=0).to(COMPUTE)")
        lines += passes.steps(found, found.last)
        value = f"tl.broadcast_to(tl.cast({found.last}, COMPUTE), (ROWS, 1))"
        return [*lines, f"tl.store(out + target, {value}.to(out.dtype.element_ty), mask=inside)"]
    write = [
        *passes.steps(found, found.last),
        "at = target + places(index, reduced_sizes, reduced_out, REDUCED)[None, :]",
        f"tl.store(out + at, {found.last}.to(out.dtype.element_ty), mask=here)",
    ]
    return [*lines, *_over_blocks(found, found.last, write)]


def _over_blocks(found: Rows, text: str, body: Sequence[str]) -> list[str]:
    """The lines that do something with what is loaded, once or for each block."""
    loads = passes.loads(found.operands(text), "first")
    loop = ["for first in range(0, reduced_count, BLOCK):", *passes.indented([*loads, *body])]
    return ["if WHOLE:", *passes.indented(body), "else:", *passes.indented(loop)]


def _gather(found: Rows, name: str, step: Pass, number: int) -> list[str]:
    """The lines that leave in a variable what a pass gathers, a column."""
    start = passes.LIMITS.get(step.start, step.start)
    body = [*passes.steps(found, step.step), f"t = tl.where(here, {in_language(step.step, 1)}, t)"]
    return [
        f"t = tl.full([ROWS, BLOCK], {start}, COMPUTE)",
        *_over_blocks(found, step.step, body),
        f"{name} = tl.reduce(t, 1, merge_{number}, keep_dims=True)",
    ]


def _forward(names: Sequence[str], knobs: Knobs) -> str:
    return f"""
tensors = ({", ".join(names)},)
shape, counts, layout, wide, block, whole, parts = plan(
    tuple(each.shape for each in tensors), tuple(each.stride() for each in tensors)
)
out = torch.empty(shape, dtype=dtypes[0], device={names[0]}.device)
if parts[0] > 1:
    return in_parts(out, tensors, (), counts, parts, layout, compute, wide, block)
rows_of[(triton.cdiv(counts[0], {knobs["rows"]}),)](
    out, *tensors, *counts, *layout,
    COMPUTE=compute, KEPT=len(layout[0]), REDUCED=len(layout[-1]), WIDE=wide,
    ROWS={knobs["rows"]}, BLOCK=block, WHOLE=whole, num_warps={knobs["warps"]},
)
return out
"""
