"""Reductions over any dimensions in Triton, of tensors in any strides and types."""

from __future__ import annotations

import textwrap

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import tensor_names
from search.proposers.playbook.passes import REDUCTIONS, Reduction, rows_from
from search.proposers.playbook.templates.operator_pieces import (
    CONTIGUOUS,
    NESTS,
    REDUCED,
    dims_of,
    keepdim_of,
)
from search.proposers.playbook.templates.triton import passes, split
from search.proposers.playbook.templates.triton.operator_pieces import known_signatures, operator_kernel
from search.proposers.playbook.workload import Signature, Workload


class ReductionTemplate(passes.PassesTemplate):
    """The family of reductions."""

    op = "reduction"

    def signatures(self, workload: Workload) -> list[Signature]:
        """See `PassesTemplate`."""
        return known_signatures(workload, passes.called(REDUCTIONS[workload.operator].passes))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found = REDUCTIONS[workload.operator]
        rows = rows_from(found)
        return operator_kernel(
            summary=f"{workload.operator} in Triton: {knobs['rows']} rows of reduced elements a program.",
            workload=workload,
            knobs=knobs,
            chosen=self.signatures(workload),
            functions=[
                *passes.merges(found.passes),
                _kernel(found),
                *split.kernels(rows, ["x0"], list(found.scalars)),
            ],
            helpers=[CONTIGUOUS, NESTS, REDUCED, passes.BLOCKS, split.PARTS, split.launches(rows, knobs)],
            plan=_plan(knobs),
            forward=_forward(workload, found, knobs),
            inputs=tensor_names(workload.operator),
        )


TEMPLATE = ReductionTemplate()


def _kernel(found: Reduction) -> str:
    given = "".join(f"{name}_given, " for name in found.scalars)
    last = "m" if len(found.passes) == 1 else "r"
    return f'''
@triton.jit
def reduction(
    out, x, {given}kept_count, reduced_count, kept_sizes, kept_x, reduced_sizes, reduced_x,
    COMPUTE: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):
    """One program: ROWS elements of the output."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    rows = program * ROWS + tl.arange(0, ROWS)
    source = places(rows, kept_sizes, kept_x, KEPT)[:, None]
{textwrap.indent(passes.passes(found.passes, list(found.scalars)), "    ")}
    if out.dtype.element_ty == tl.int1:
        {last} = {last} != 0
    tl.store(out + rows[:, None], {last}.to(out.dtype.element_ty), mask=inside)
'''


def _plan(knobs: Knobs) -> str:
    return f'''
def plan(shape, strides, dim, keepdim):
    """The output's shape, numbers of rows and of their elements, sizes and strides of both nests of loops,
    whether places are beyond 32 bits, the block's size, whether it is a whole row, and into how many parts of
    how many elements a row is split."""
    inside = reduced(dim, len(shape))
    result = [1 if place in inside else size for place, size in enumerate(shape)]
    result = result if keepdim else [size for place, size in enumerate(shape) if place not in inside]
    kept, inner = nests(shape, inside, strides)
{passes.planned("result", knobs, parts=True)}'''


def _forward(workload: Workload, found: Reduction, knobs: Knobs) -> str:
    scalars = "".join(f"float({each}), " for each in found.scalars.values())
    return f"""
dim = {dims_of(workload)}
shape, counts, layout, wide, block, whole, parts = plan(
    input.shape, input.stride(), dim, {keepdim_of(workload)}
)
out = torch.empty(shape, dtype=dtypes[0], device=input.device)
if parts[0] > 1:
    return in_parts(out, (input,), ({scalars}), counts, parts, layout, compute, wide, block)
reduction[(triton.cdiv(counts[0], {knobs["rows"]}),)](
    out, input, {scalars}*counts, *layout,
    COMPUTE=compute, KEPT=len(layout[0]), REDUCED=len(layout[2]), WIDE=wide,
    ROWS={knobs["rows"]}, BLOCK=block, WHOLE=whole, num_warps={knobs["warps"]},
)
return out
"""
