"""Softmax, log-softmax and layer norm over any dimensions in Triton, of tensors in any strides and types."""

from __future__ import annotations

import textwrap

from search.proposers.playbook.formulas import called_in, in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import tensor_names
from search.proposers.playbook.passes import NORMALISATIONS, Normalisation
from search.proposers.playbook.templates.operator_pieces import CONTIGUOUS, NESTS, REDUCED
from search.proposers.playbook.templates.triton import passes
from search.proposers.playbook.templates.triton.operator_pieces import known_signatures, operator_kernel
from search.proposers.playbook.workload import Signature, Workload


class NormalisationTemplate(passes.PassesTemplate):
    """The family of normalisations."""

    op = "normalisation"

    def signatures(self, workload: Workload) -> list[Signature]:
        """See `PassesTemplate`."""
        found = NORMALISATIONS[workload.operator]
        return known_signatures(workload, passes.called(found.passes) | called_in(found.write))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, names = NORMALISATIONS[workload.operator], tensor_names(workload.operator)
        return operator_kernel(
            summary=f"{workload.operator} in Triton: {knobs['rows']} rows a program.",
            workload=workload,
            knobs=knobs,
            chosen=self.signatures(workload),
            functions=[*passes.merges(found.passes), _kernel(found)],
            helpers=[CONTIGUOUS, NESTS, REDUCED, passes.BLOCKS],
            plan=_plan(knobs, found),
            forward=_forward(names, found, knobs),
            inputs=names,
        )


TEMPLATE = NormalisationTemplate()


def _kernel(found: Normalisation) -> str:
    scalars = "".join(f"{name}_given, " for name in found.scalars)
    more = "means, scales, " if found.more else ""
    weights = "weight, bias, " if found.more else ""
    strides = "reduced_out, reduced_x" + (", reduced_w, reduced_b" if found.more else "")
    strides_kept = "kept_out, kept_x" + (", kept_w, kept_b" if found.more else "")
    keep = ""
    if found.more:
        keep = """
    tl.store(means + rows[:, None], m.to(means.dtype.element_ty), mask=inside)
    tl.store(scales + rows[:, None], r.to(scales.dtype.element_ty), mask=inside)"""
    write = _write(found)
    loop = f"for first in range(0, reduced_count, BLOCK):\n{textwrap.indent(f'{passes.LOAD}{write}', '    ')}"
    return f'''
@triton.jit
def normalisation(
    out, {more}x, {weights}{scalars}kept_count, reduced_count,
    kept_sizes, {strides_kept}, reduced_sizes, {strides},
    COMPUTE: tl.constexpr, KEPT: tl.constexpr, REDUCED: tl.constexpr, WIDE: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):
    """One program: ROWS rows."""
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    rows = program * ROWS + tl.arange(0, ROWS)
    source = places(rows, kept_sizes, kept_x, KEPT)[:, None]
    target = places(rows, kept_sizes, kept_out, KEPT)[:, None]
{textwrap.indent(passes.passes(found.passes, list(found.scalars)), "    ")}{keep}
    if WHOLE:{textwrap.indent(write, "        ")}
    else:
{textwrap.indent(loop, "        ")}
'''


def _write(found: Normalisation) -> str:
    """The lines that write the elements of a loaded block."""
    lines = [""]
    if found.more:
        for name, pointer, otherwise in (("w", "weight", 1), ("b", "bias", 0)):
            place = f"places(index, reduced_sizes, reduced_{name}, REDUCED)[None, :]"
            lines += [
                f"if {pointer} is None:",
                f"    {name} = {otherwise}.0",
                "else:",
                f"    {name} = tl.load({pointer} + {place}, mask=here).to(COMPUTE)",
            ]
    lines += [
        f"value = {in_language(found.write, 1)}",
        "at = target + places(index, reduced_sizes, reduced_out, REDUCED)[None, :]",
        "tl.store(out + at, value.to(out.dtype.element_ty), mask=here)",
    ]
    return "\n".join(lines)


def _plan(knobs: Knobs, found: Normalisation) -> str:
    more = ", *([0] * (len(shape) - len(each)) + list(each) for each in weights)" if found.more else ""
    return f'''
def plan(shape, strides, dim, weights=()):
    """The shape of what is kept, numbers of rows and of their elements, sizes and strides of both nests of
    loops, whether places are beyond 32 bits, the block's size, and whether it is a whole row."""
    inside = reduced(dim, len(shape))
    ones = [1 if place in inside else size for place, size in enumerate(shape)]
    kept, inner = nests(shape, inside, contiguous(shape), strides{more})
{passes.planned("ones", knobs)}'''


def _forward(names: tuple[str, ...], found: Normalisation, knobs: Knobs) -> str:
    first, *weights = names
    scalars = "".join(f"float({each}), " for each in found.scalars.values())
    lines = [f"dim = tuple({found.dims})"]
    given = ""
    if found.more:
        several = ", ".join(weights)
        lines += [f"weights = tuple(() if each is None else each.stride() for each in ({several}))"]
        given = ", weights"
    lines += [
        f"ones, counts, layout, wide, block, whole = plan({first}.shape, {first}.stride(), dim{given})",
        f"out = torch.empty({first}.shape, dtype=dtypes[0], device={first}.device)",
        "outs = (out,)",
    ]
    if found.more:
        make = f"torch.empty(ones, dtype=each, device={first}.device)"
        lines += [f"outs = (out, *({make} for each in dtypes[1:]))"]
    lines += [
        f"normalisation[(triton.cdiv(counts[0], {knobs['rows']}),)](",
        f"    *outs, {', '.join(names)}, {scalars}*counts, *layout,",
        "    COMPUTE=compute, KEPT=len(layout[0]), REDUCED=len(layout[-1]), WIDE=wide,",
        f"    ROWS={knobs['rows']}, BLOCK=block, WHOLE=whole, num_warps={knobs['warps']},",
        ")",
        f"return {'outs' if found.more else 'out'}",
    ]
    return "\n".join(lines)
