"""Reductions over any dimensions in C++, of tensors in any strides and types."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.passes import REDUCTIONS, Reduction
from search.proposers.playbook.templates.cpp import passes, pieces
from search.proposers.playbook.templates.cpp.operator_pieces import (
    ELEMENTS,
    KNOWN,
    TYPES,
    functions,
    operator_kernel,
)
from search.proposers.playbook.templates.operator_pieces import (
    CONTIGUOUS,
    NESTS,
    REDUCED,
    dims_of,
    keepdim_of,
    kept,
)
from search.proposers.playbook.workload import Signature, Workload


class ReductionTemplate(passes.PassesTemplate):
    """The family of reductions."""

    op = "reduction"

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, chosen = REDUCTIONS[workload.operator], kept(workload, KNOWN)
        source = pieces.joined(
            ELEMENTS,
            functions(passes.called(found.passes)),
            passes.NEST,
            passes.passes(found.passes, found.scalars, knobs),
            _loop(found, knobs),
            *(_entry(place, each, knobs) for place, each in enumerate(chosen)),
        )
        return operator_kernel(
            summary=f"{workload.operator} in C++: one row of reduced elements after the other.",
            workload=workload,
            knobs=knobs,
            source=source,
            chosen=chosen,
            helpers=[CONTIGUOUS, NESTS, REDUCED, passes.LAYOUT],
            plan=PLAN,
            forward=_forward(workload, found),
            pointers=2,
        )


TEMPLATE = ReductionTemplate()

PLAN = '''
def plan(shape, strides, dim, keepdim):
    """The output's shape, and both nests of loops as C++ takes them."""
    inside = reduced(dim, len(shape))
    ones = [1 if place in inside else size for place, size in enumerate(shape)]
    own = [0 if place in inside else stride for place, stride in enumerate(contiguous(ones))]
    result = ones if keepdim else [size for place, size in enumerate(shape) if place not in inside]
    return result, layout_of(*nests(shape, inside, own, strides))
'''


def _loop(found: Reduction, knobs: Knobs) -> str:
    calls = "        const C m = pass_0<C, A>(from, reduced, C(0), s);\n"
    if len(found.passes) > 1:
        calls += "        const C r = pass_1<C, A>(from, reduced, m, s);\n"
    last = "m" if len(found.passes) == 1 else "r"
    return f"""
template <class C, class O, class A>
static void reduction(O* out, const A* x, const int64_t* layout, const double* s, int threads) {{
    const Nest kept(layout), reduced(layout + 2 + 3 * kept.dims);
{passes.parallel(knobs)}    for (int64_t i = 0; i < kept.count; ++i) {{
        const A* from = x + kept.place(i, {passes.INPUT});
{calls}        out[i] = store<O, C>({last});
    }}
}}
"""


def _entry(place: int, signature: Signature, knobs: Knobs) -> str:
    out, x = TYPES[signature.outputs[0]], TYPES[signature.tensors[0]]
    kinds = f"{passes.gathered(signature, knobs)}, {out}, {x}"
    return f"""extern "C" void run_{place}(void* out, void* x, int64_t* layout, double* s, int threads) {{
    reduction<{kinds}>(({out}*)out, (const {x}*)x, layout, s, threads);
}}"""


def _forward(workload: Workload, found: Reduction) -> str:
    return f"""
shape, layout = plan(input.shape, input.stride(), {dims_of(workload)}, {keepdim_of(workload)})
out = torch.empty(shape, dtype=dtypes[0])
numbers = doubles({", ".join(found.scalars.values())})
run(out.data_ptr(), input.data_ptr(), layout, numbers, torch.get_num_threads())
return out
"""
