"""Softmax, log-softmax and layer norm over any dimensions in C++, of tensors in any strides and types."""

from __future__ import annotations

from search.proposers.playbook.formulas import in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import tensor_names
from search.proposers.playbook.passes import NORMALISATIONS, Normalisation
from search.proposers.playbook.templates.cpp import passes, pieces
from search.proposers.playbook.templates.cpp.operator_pieces import (
    ELEMENTS,
    KNOWN,
    TYPES,
    functions,
    operator_kernel,
)
from search.proposers.playbook.templates.operator_pieces import CONTIGUOUS, NESTS, REDUCED, kept
from search.proposers.playbook.workload import Signature, Workload

WEIGHTS = 2
"""The place of the weight among the tensors of a layout; the bias is the next."""


class NormalisationTemplate(passes.PassesTemplate):
    """The family of normalisations."""

    op = "normalisation"

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, chosen = NORMALISATIONS[workload.operator], kept(workload, KNOWN)
        names = tensor_names(workload.operator)
        texts = [*passes.called(found.passes), in_language(found.write, 0)]
        source = pieces.joined(
            ELEMENTS,
            functions(texts),
            passes.NEST,
            passes.passes(found.passes, found.scalars, knobs),
            _loop(found, knobs, len(names)),
            *(_entry(place, each, found, knobs) for place, each in enumerate(chosen)),
        )
        return operator_kernel(
            summary=f"{workload.operator} in C++: two passes over a row, and one that writes it.",
            workload=workload,
            knobs=knobs,
            source=source,
            chosen=chosen,
            helpers=[CONTIGUOUS, NESTS, REDUCED, passes.LAYOUT],
            plan=_plan(len(names)),
            forward=_forward(names, found),
            pointers=len(names) + (3 if found.more else 1),
        )


TEMPLATE = NormalisationTemplate()


def _loop(found: Normalisation, knobs: Knobs, tensors: int) -> str:
    """Of an output, the input and, where there are more, a weight and a bias, each of which may be null."""
    given = ", M* means, M* scales" if found.more else ""
    weights = ", const A* weight, const A* bias" if tensors > 1 else ""
    keep = "        means[i] = store<M, C>(m);\n        scales[i] = store<M, C>(r);\n" if found.more else ""
    strides = 1 + tensors
    return f"""
template <class C, class O, class M, class A>
static void normalisation(O* out{given}, const A* x{weights},
                          const int64_t* layout, const double* s, int threads) {{
    const Nest kept(layout), reduced(layout + 2 + {1 + strides} * kept.dims);
{passes.parallel(knobs)}    for (int64_t i = 0; i < kept.count; ++i) {{
        const A* from = x + kept.place(i, 1);
        O* to = out + kept.place(i, 0);
        const C m = pass_0<C, A>(from, reduced, C(0), s);
        const C r = pass_1<C, A>(from, reduced, m, s);
{keep}{_write(found, knobs, tensors)}    }}
}}
"""


def _write(found: Normalisation, knobs: Knobs, tensors: int) -> str:
    text = in_language(found.write, 0)
    if knobs["loop"] == "elements":
        places = [f"reduced.place(j, {tensor})" for tensor in range(tensors + 1)]
        return _written(text, places, "        for (int64_t j = 0; j < reduced.count; ++j) {", " " * 12)
    starts = ", ".join(f"at{n} = reduced.place(first, {n})" for n in range(tensors + 1))
    strided = [f"at{n} + j * reduced.step({n})" for n in range(tensors + 1)]
    dense = [f"at{n} + j" for n in range(tensors + 1)]
    ones = " && ".join(f"reduced.step({n}) == 1" for n in range(tensors + 1))
    loop = "for (int64_t j = 0; j < length; ++j) {"
    return f"""        const int64_t length = reduced.length();
        for (int64_t first = 0; first < reduced.count; first += length) {{
            const int64_t {starts};
            if ({ones}) {{
{_written(text, dense, " " * 16 + loop, " " * 20)}            }} else {{
{_written(text, strided, " " * 16 + loop, " " * 20)}            }}
        }}
"""


def _written(text: str, places: list[str], loop: str, indent: str) -> str:
    lines = [f"const C v = load<C, A>(from[{places[1]}]);"]
    for name, pointer, place, otherwise in zip(
        "wb", ("weight", "bias"), places[WEIGHTS:], "10", strict=False
    ):
        lines.append(f"const C {name} = {pointer} ? load<C, A>({pointer}[{place}]) : C({otherwise});")
    lines.append(f"to[{places[0]}] = store<O, C>({text});")
    return loop + "\n" + "".join(f"{indent}{line}\n" for line in lines) + indent[4:] + "}\n"


def _entry(place: int, signature: Signature, found: Normalisation, knobs: Knobs) -> str:
    out, more = TYPES[signature.outputs[0]], TYPES[signature.outputs[-1]]
    x = TYPES[signature.tensors[0]]
    kinds = [out, *([more, more] if found.more else []), *(f"const {x}" for _ in signature.tensors)]
    pointers = ", ".join(f"void* p{n}" for n in range(len(kinds)))
    casts = ", ".join(f"({kind}*)p{n}" for n, kind in enumerate(kinds))
    types = f"{passes.gathered(signature, knobs)}, {out}, {more}, {x}"
    return f"""extern "C" void run_{place}({pointers}, int64_t* layout, double* s, int threads) {{
    normalisation<{types}>({casts}, layout, s, threads);
}}"""


def _plan(tensors: int) -> str:
    weights = ""
    if tensors > 1:
        weights = ", *([0] * (len(shape) - len(each)) + list(each) for each in weights)"
    return f'''
def plan(shape, strides, dim, weights=()):
    """The shape of what is kept, and both nests of loops as C++ takes them."""
    inside = reduced(dim, len(shape))
    ones = [1 if place in inside else size for place, size in enumerate(shape)]
    return ones, layout_of(*nests(shape, inside, contiguous(shape), strides{weights}))
'''


def _forward(names: tuple[str, ...], found: Normalisation) -> str:
    first, *weights = names
    given = ""
    if weights:
        given = f", tuple(() if each is None else each.stride() for each in ({', '.join(weights)},))"
    outs = "outs = (out,)"
    if found.more:
        outs = "outs = (out, *(torch.empty(ones, dtype=each) for each in dtypes[1:]))"
    tensors = ", ".join(["*outs", *names])
    return f"""
ones, layout = plan({first}.shape, {first}.stride(), tuple({found.dims}){given})
out = torch.empty({first}.shape, dtype=dtypes[0])
{outs}
pointers = [each if each is None else each.data_ptr() for each in ({tensors},)]
run(*pointers, layout, doubles({", ".join(found.scalars.values())}), torch.get_num_threads())
return {"outs" if found.more else "out"}
"""
