"""Element-wise operators with reductions among them over the same dimensions, in C++: softmax of what is
scaled and masked, a normalisation of a sum, RMS norm that is written out."""

from __future__ import annotations

from collections.abc import Sequence

from search.proposers.playbook.formulas import OPERANDS, in_language
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.operator_problem import names_of
from search.proposers.playbook.passes import Pass, Rows
from search.proposers.playbook.templates.cpp import passes, pieces
from search.proposers.playbook.templates.cpp.operator_pieces import (
    ELEMENTS,
    KNOWN,
    TYPES,
    functions,
    operator_kernel,
)
from search.proposers.playbook.templates.cpp.pointwise import KINDS
from search.proposers.playbook.templates.operator_pieces import (
    BROADCAST,
    CONTIGUOUS,
    NESTS,
    SPREAD,
    kept,
    rows_of,
    rows_plan,
)
from search.proposers.playbook.workload import Signature, Workload


class RowsTemplate(passes.PassesTemplate):
    """The family of chains with reductions."""

    op = "rows"

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        found, chosen, names = rows_of(workload), kept(workload, KNOWN), names_of(workload)
        source = pieces.joined(
            ELEMENTS,
            functions([in_language(each, 0) for each in found.texts]),
            passes.NEST,
            _loop(found, knobs, len(names)),
            *(_entry(place, each, knobs) for place, each in enumerate(chosen)),
        )
        return operator_kernel(
            summary="a chain with reductions in C++: passes over a row, and one that writes it.",
            workload=workload,
            knobs=knobs,
            source=source,
            chosen=chosen,
            helpers=[BROADCAST, SPREAD, CONTIGUOUS, NESTS, passes.LAYOUT],
            plan=f"{rows_plan(found)}\n    return result, layout_of(kept, inner)\n",
            forward=_forward(names),
            pointers=len(names) + 1,
        )


TEMPLATE = RowsTemplate()


def _loop(found: Rows, knobs: Knobs, count: int) -> str:
    """The layout: the nest of loops over rows, and that over their elements; the strides of the output come
    first."""
    types = ", ".join(f"class {name}" for name in KINDS[:count])
    tensors = ", ".join(f"const {kind}* x{place}" for place, kind in enumerate(KINDS[:count]))
    starts = "".join(
        f"        const {KINDS[n]}* p{n} = x{n} + kept.place(i, {n + 1});\n" for n in range(count)
    )
    lines = []
    for name, step in found.steps.items():
        if isinstance(step, Pass):
            lines += _gather(found, name, step, knobs).splitlines()
        elif name not in found.elements:
            lines.append(f"const C {name} = C({in_language(step, 0)});")
    lines += ["O* to = out + kept.place(i, 0);"]
    if found.kept:
        lines += [_elements(found, found.last, ["0"] * count), f"*to = store<O, C>({found.last});"]
    else:
        lines += _write(found, knobs).splitlines()
    body = "".join(f"        {line}\n" if not line.startswith("#") else f"{line}\n" for line in lines)
    return f"""
template <class C, class O, {types}>
static void rows(O* out, {tensors}, const int64_t* layout, int threads) {{
    const Nest kept(layout), reduced(layout + 2 + {2 + count} * kept.dims);
    const C n = C(reduced.count);
{passes.parallel(knobs)}    for (int64_t i = 0; i < kept.count; ++i) {{
{starts}{body}    }}
}}
"""


def _elements(found: Rows, text: str, places: Sequence[str]) -> str:
    """The lines that make what a text is over, of an element; `places`: of each operand from its row."""
    lines = []
    for each in found.needed(text):
        if each in OPERANDS:
            n = OPERANDS.index(each)
            lines.append(f"const C {each} = load<C, {KINDS[n]}>(p{n}[{places[n]}]);")
        else:
            step = found.steps[each]
            assert isinstance(step, str)
            lines.append(f"const C {each} = C({in_language(step, 0)});")
    return " ".join(lines)


def _gather(found: Rows, name: str, step: Pass, knobs: Knobs) -> str:
    """The lines that leave in a variable what a pass gathers."""
    start, used = passes.LIMITS.get(step.start, step.start), found.operands(step.step)
    count = len(OPERANDS)
    lanes = knobs["lanes"] if knobs["loop"] == "lanes" else 1
    text, merge = in_language(step.step, 0), in_language(step.merge, 0)
    strided = _elements(found, step.step, [f"at{n} + j * reduced.step({n + 1})" for n in range(count)])
    dense = _elements(found, step.step, [f"at{n} + j + k" for n in range(count)])
    starts = "".join(f"        const int64_t at{n} = reduced.place(first, {n + 1});\n" for n in used)
    ones = " && ".join(f"reduced.step({n + 1}) == 1" for n in used)
    return f"""C {name};
{{
    C lane[{lanes}];
    std::fill(lane, lane + {lanes}, C({start}));
    const int64_t length = reduced.length();
    for (int64_t first = 0; first < reduced.count; first += length) {{
{starts}        int64_t j = 0;
        if ({ones})
            for (; j + {lanes} <= length; j += {lanes})
                for (int k = 0; k < {lanes}; ++k) {{
                    {dense}
                    const C t = lane[k];
                    lane[k] = {text};
                }}
        for (; j < length; ++j) {{
            {strided}
            const C t = lane[j % {lanes}];
            lane[j % {lanes}] = {text};
        }}
    }}
    C t = lane[0];
    for (int k = 1; k < {lanes}; ++k) {{
        const C u = lane[k];
        t = {merge};
    }}
    {name} = t;
}}"""


def _write(found: Rows, knobs: Knobs) -> str:
    """The lines that write the elements of a row."""
    count, used = len(OPERANDS), found.operands(found.last)
    strided = _elements(found, found.last, [f"at{n} + j * reduced.step({n + 1})" for n in range(count)])
    dense = _elements(found, found.last, [f"at{n} + j" for n in range(count)])
    starts = "".join(f"    const int64_t at{n} = reduced.place(first, {n + 1});\n" for n in used)
    ones = " && ".join(["reduced.step(0) == 1", *(f"reduced.step({n + 1}) == 1" for n in used)])
    value = f"store<O, C>({found.last})"
    loop = f"""        for (int64_t j = 0; j < length; ++j) {{
            {strided}
            to[at + j * reduced.step(0)] = {value};
        }}"""
    if knobs["loop"] == "lanes":
        loop = f"""    if ({ones})
        for (int64_t j = 0; j < length; ++j) {{
            {dense}
            to[at + j] = {value};
        }}
    else
{loop}"""
    return f"""const int64_t length = reduced.length();
for (int64_t first = 0; first < reduced.count; first += length) {{
    const int64_t at = reduced.place(first, 0);
{starts}{loop}
}}"""


def _entry(place: int, signature: Signature, knobs: Knobs) -> str:
    """The function that Python calls."""
    inputs = [TYPES[name] for name in signature.tensors]
    out = TYPES[signature.outputs[0]]
    kinds = ", ".join([passes.gathered(signature, knobs), out, *inputs])
    pointers = ", ".join(f"void* p{n}" for n in range(len(inputs) + 1))
    casts = ", ".join([f"({out}*)p0", *(f"(const {kind}*)p{n + 1}" for n, kind in enumerate(inputs))])
    return f"""extern "C" void run_{place}({pointers}, int64_t* layout, double* s, int threads) {{
    rows<{kinds}>({casts}, layout, threads);
}}"""


def _forward(names: Sequence[str]) -> str:
    return f"""
tensors = ({", ".join(names)},)
shape, layout = plan(tuple(each.shape for each in tensors), tuple(each.stride() for each in tensors))
out = torch.empty(shape, dtype=dtypes[0])
pointers = [each.data_ptr() for each in (out, *tensors)]
run(*pointers, layout, None, torch.get_num_threads())
return out
"""
