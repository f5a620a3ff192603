"""Element-wise operators in C++, with broadcasting, for any strides and types."""

from __future__ import annotations

from collections.abc import Sequence

from search.proposers.playbook.formulas import OPERANDS, Formula, in_language
from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.operator_problem import formula_for, in_place, names_of
from search.proposers.playbook.templates.cpp import pieces, vector_functions
from search.proposers.playbook.templates.cpp.operator_pieces import (
    ELEMENTS,
    KINDS,
    KNOWN,
    TYPES,
    functions,
    operator_kernel,
)
from search.proposers.playbook.templates.operator_moves import MERGE, OPTIMISER, REMEMBER
from search.proposers.playbook.templates.operator_pieces import BROADCAST, CONTIGUOUS, SPREAD, kept
from search.proposers.playbook.workload import Signature, Workload
from search.records.tree import Category

MOVES = (
    REMEMBER,
    MERGE,
    OPTIMISER,
    vector_functions.MOVE,
    Move(
        name="rows",
        text="Give the innermost dimension a separate loop, without a division for each element's address, "
        "and another one for tensors that are contiguous there, which the compiler can vectorise.",
        category=Category.CONTROL_FLOW,
        gain=2.0,
        needs={"loop": ("elements",)},
        sets={"loop": "rows"},
    ),
    Move(
        name="threads",
        text="Spread large tensors over all cores, and compute small ones on one: starting the other threads "
        "costs as much as about ten thousand elements.",
        category=Category.PARALLELISM,
        gain=1.1,
        needs={"loop": ("rows",)},
        sets={"threads": True},
        varies={"grain": (32768, 8192, 131072)},
    ),
    Move(
        name="chunks",
        text="Change the length of a piece of work along the innermost dimension: smaller pieces are shared "
        "more evenly, larger ones have less overhead.",
        category=Category.PARALLELISM,
        gain=1.02,
        needs={"loop": ("rows",), "threads": (True,)},
        varies={"chunk": (4096, 16384, 1024)},
    ),
    Move(
        name="unroll",
        text="Unroll the innermost loop, so that several elements are in flight.",
        category=Category.LATENCY,
        gain=1.02,
        needs={"loop": ("rows",), "flags": (pieces.FAST,)},
        varies={"unroll": (4, 2, 8)},
    ),
)

NAIVE: Knobs = {
    "loop": "elements",
    "flags": "-O2",
    "functions": "library",
    "merged": False,
    "remembered": False,
    "threads": False,
    "grain": 32768,
    "chunk": 4096,
    "unroll": 1,
}


class Pointwise:
    """The family of element-wise kernels."""

    op = "pointwise"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """The types must be supported; threads need the loop over rows."""
        return bool(_signatures(workload)) and (knobs["loop"] == "rows" or not knobs["threads"])

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        formula, chosen = formula_for(workload), _signatures(workload)
        names = names_of(workload)
        source = pieces.joined(
            ELEMENTS,
            functions([in_language(each, 0) for each in formula.texts]),
            _compute(formula, len(names)),
            _loops(knobs, len(names)),
            *(_entry(place, each) for place, each in enumerate(chosen)),
        )
        return operator_kernel(
            summary=f"{workload.operator or 'a chain'} in C++: one loop over the output's elements.",
            workload=workload,
            knobs=knobs,
            source=source,
            chosen=chosen,
            helpers=[BROADCAST, SPREAD, CONTIGUOUS],
            plan=_plan(workload),
            forward=_forward(workload, formula),
            pointers=len(names) + 1,
        )


TEMPLATE = Pointwise()


def _signatures(workload: Workload) -> list[Signature]:
    """The supported signatures. On booleans `~` is not a bit operation."""
    found = kept(workload, KNOWN)
    bits = "~" in " ".join(formula_for(workload).texts)
    return [each for each in found if not bits or "bool" not in each.tensors]


def _compute(formula: Formula, count: int) -> str:
    """The function that computes an element of the output."""
    scalars = [f"    const C {name} = C(s[{place}]);" for place, name in enumerate(formula.scalars)]
    steps = [f"    const C {name} = C({in_language(text, 0)});" for name, text in formula.steps.items()]
    operands = ", ".join(f"C {name}" for name in OPERANDS[:count])
    body = "\n".join([*scalars, *steps, f"    return C({in_language(formula.text, 0)});"])
    return f"template <class C>\nstatic inline C compute({operands}, const double* s) {{\n{body}\n}}"


def _loops(knobs: Knobs, count: int) -> str:
    """The function `pointwise`. Its layout has the numbers of elements and of dimensions, the sizes, and the
    strides of each tensor, the output first."""
    types = ", ".join(f"class {name}" for name in KINDS[:count])
    tensors = ", ".join(f"const {kind}* x{place}" for place, kind in enumerate(KINDS[:count]))
    head = f"""template <class C, class O, {types}>
static void pointwise(O* out, {tensors}, const int64_t* layout, const double* s, int threads) {{
    const int64_t count = layout[0], dims = layout[1], *size = layout + 2, *stride = size + dims;"""
    return f"{head}\n{(_rows if knobs['loop'] == 'rows' else _elements)(knobs, count)}}}"


def _value(count: int, places: Sequence[str]) -> str:
    loads = ", ".join(f"load<C, {KINDS[n]}>(x{n}[{places[n + 1]}])" for n in range(count))
    return f"out[{places[0]}] = store<O, C>(compute<C>({loads}, s));"


def _elements(knobs: Knobs, count: int) -> str:
    places = [f"at[{n}]" for n in range(count + 1)]
    return f"""    for (int64_t i = 0; i < count; ++i) {{
        int64_t at[{count + 1}] = {{}}, rest = i;
        for (int64_t d = dims - 1; d >= 0; --d) {{
            for (int tensor = 0; tensor <= {count}; ++tensor)
                at[tensor] += rest % size[d] * stride[tensor * dims + d];
            rest /= size[d];
        }}
        {_value(count, places)}
    }}
"""


def _rows(knobs: Knobs, count: int) -> str:
    """Pieces of at most CHUNK elements of the innermost dimension."""
    steps = [f"stride[{n} * dims + dims - 1]" for n in range(count + 1)]
    along = ", ".join(f"step{n} = {step}" for n, step in enumerate(steps))
    contiguous = " && ".join(f"step{n} == 1" for n in range(count + 1))
    starts = ", ".join(f"at{n} = at[{n}] + first * step{n}" for n in range(count + 1))
    dense = _value(count, [f"at{n} + j" for n in range(count + 1)])
    strided = _value(count, [f"at{n} + j * step{n}" for n in range(count + 1)])
    unroll = f"            #pragma GCC unroll {knobs['unroll']}\n" if int(knobs["unroll"]) > 1 else ""
    parallel = ""
    if knobs["threads"]:
        parallel = f"    #pragma omp parallel for num_threads(threads) if (count >= {knobs['grain']})\n"
    return f"""    constexpr int64_t CHUNK = {knobs["chunk"]};
    const int64_t length = size[dims - 1], parts = (length + CHUNK - 1) / CHUNK;
    const int64_t pieces = length ? count / length * parts : 0, {along};
{parallel}    for (int64_t piece = 0; piece < pieces; ++piece) {{
        int64_t at[{count + 1}] = {{}}, rest = piece / parts;
        for (int64_t d = dims - 2; d >= 0; --d) {{
            for (int tensor = 0; tensor <= {count}; ++tensor)
                at[tensor] += rest % size[d] * stride[tensor * dims + d];
            rest /= size[d];
        }}
        const int64_t first = piece % parts * CHUNK, here = std::min(CHUNK, length - first);
        const int64_t {starts};
        if ({contiguous}) {{
{unroll}            for (int64_t j = 0; j < here; ++j)
                {dense}
        }} else {{
            for (int64_t j = 0; j < here; ++j)
                {strided}
        }}
    }}
"""


def _entry(place: int, signature: Signature) -> str:
    """The function that Python calls. An omitted tensor is passed as the first tensor."""
    first = signature.tensors[0]
    inputs = [TYPES[name or first] for name in signature.tensors]
    kinds = ", ".join([TYPES[signature.compute], TYPES[signature.outputs[0]], *inputs])
    pointers = ", ".join(f"void* p{n}" for n in range(len(inputs) + 1))
    casts = [f"({TYPES[signature.outputs[0]]}*)p0"]
    casts += [f"(const {kind}*)p{n + 1}" for n, kind in enumerate(inputs)]
    return f"""extern "C" void run_{place}({pointers}, int64_t* layout, double* s, int threads) {{
    pointwise<{kinds}>({", ".join(casts)}, layout, s, threads);
}}"""


def _plan(workload: Workload) -> str:
    own = "shape, strides[0]" if in_place(workload.operator) else "shape, contiguous(shape)"
    return f'''
def plan(shapes, strides):
    """The output's shape, and the layout of the loops for C++, with the output's strides first."""
    shape = broadcast(shapes)
    steps = [spread(shape, *each) for each in zip(shapes, strides)]
    dims = dimensions({own}, *steps)
    layout = [shape.numel(), len(dims), *(value for column in zip(*dims) for value in column)]
    return shape, (ctypes.c_int64 * len(layout))(*layout)
'''


def _forward(workload: Workload, formula: Formula) -> str:
    names = names_of(workload)
    first, *others = names
    tensors = ", ".join([first, *(f"{first} if {name} is None else {name}" for name in others)])
    optional = "" in {each for signature in _signatures(workload) for each in signature.tensors}
    tensors = tensors if optional else ", ".join(names)
    out = f"out = {first}" if in_place(workload.operator) else "out = torch.empty(shape, dtype=dtypes[0])"
    return f"""
tensors = ({tensors},)
shape, layout = plan(tuple(each.shape for each in tensors), tuple(each.stride() for each in tensors))
{out}
pointers = [each.data_ptr() for each in (out, *tensors)]
run(*pointers, layout, doubles({", ".join(formula.scalars.values())}), torch.get_num_threads())
return out
"""
