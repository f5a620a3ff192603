"""Passes over the elements that a reduction or a normalisation reduces, in C++, and the moves for them.

A layout has two nests of loops: over what is kept, and over what is reduced. Of each it tells the number of
elements and of dimensions, their sizes and, for one tensor after the other, their strides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from search.proposers.playbook.formulas import in_language
from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.passes import Pass
from search.proposers.playbook.templates.cpp import pieces, vector_functions
from search.proposers.playbook.templates.cpp.operator_pieces import KNOWN
from search.proposers.playbook.templates.operator_moves import MERGE, OPTIMISER, REMEMBER
from search.proposers.playbook.templates.operator_pieces import kept
from search.proposers.playbook.workload import Signature, Workload
from search.records.tree import Category

MOVES = (
    REMEMBER,
    MERGE,
    OPTIMISER,
    vector_functions.MOVE,
    Move(
        name="lanes",
        text="Gather in several independent lanes along the innermost dimension, and combine them at the "
        "end: one addition need not wait for the one before, and where elements are contiguous the lanes "
        "become vectors.",
        category=Category.LATENCY,
        gain=2.5,
        needs={"loop": ("elements",)},
        sets={"loop": "lanes"},
        varies={"lanes": (16, 32, 8)},
    ),
    Move(
        name="more lanes",
        text="Choose how many lanes gather: more hide the latency of additions, fewer are combined sooner, "
        "which counts for short rows.",
        category=Category.LATENCY,
        gain=1.05,
        needs={"loop": ("lanes",)},
        varies={"lanes": (8, 32, 64, 4)},
    ),
    Move(
        name="single sums",
        text="Gather in float32 where elements have no more: twice as many fit into a vector, and the many "
        "lanes keep the error of a sum as small as PyTorch's.",
        category=Category.PRECISION,
        gain=1.3,
        needs={"loop": ("lanes",), "sums": ("double",)},
        sets={"sums": "float"},
    ),
    Move(
        name="threads",
        text="Spread the rows over all cores where there is enough to do, and leave small tensors to one.",
        category=Category.PARALLELISM,
        gain=1.1,
        sets={"threads": True},
        varies={"grain": (32768, 8192, 131072)},
    ),
)
NAIVE: Knobs = {
    "loop": "elements",
    "lanes": 16,
    "sums": "double",
    "flags": "-O2",
    "functions": "library",
    "merged": False,
    "remembered": False,
    "threads": False,
    "grain": 32768,
}

NEST = """
struct Nest {
    int64_t count, dims;
    const int64_t *size, *stride;
    explicit Nest(const int64_t* from) : count(from[0]), dims(from[1]), size(from + 2), stride(size + dims) {}

    // Where a tensor has the i-th element.
    int64_t place(int64_t i, int tensor) const {
        int64_t at = 0;
        for (int64_t d = dims - 1; d >= 0; --d) {
            at += i % size[d] * stride[tensor * dims + d];
            i /= size[d];
        }
        return at;
    }
    int64_t length() const { return size[dims - 1]; }
    int64_t step(int tensor) const { return stride[tensor * dims + dims - 1]; }
};
"""
LAYOUT = '''
def layout_of(*nests):
    """Nests of loops as C++ takes them."""
    layout = []
    for dims in nests:
        columns = list(zip(*dims))
        layout += [math.prod(columns[0]), len(dims), *(value for column in columns for value in column)]
    return (ctypes.c_int64 * len(layout))(*layout)
'''
LIMITS = {
    "lowest": "std::numeric_limits<C>::has_infinity ? -std::numeric_limits<C>::infinity() : "
    "std::numeric_limits<C>::lowest()",
    "highest": "std::numeric_limits<C>::has_infinity ? std::numeric_limits<C>::infinity() : "
    "std::numeric_limits<C>::max()",
}
INPUT = 1
"""The place of the tensor that is reduced among those of a layout; the output is the first."""


class PassesTemplate:
    """What the families with passes share."""

    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """There is a signature that it can have; sums in float32 are as exact as PyTorch's in many lanes
        alone."""
        exact = knobs["sums"] == "double" or (knobs["loop"] == "lanes" and int(knobs["lanes"]) >= 8)
        return exact and bool(kept(workload, KNOWN))


def gathered(signature: Signature, knobs: Knobs) -> str:
    """The type in which a kernel gathers."""
    if signature.compute == "int64":
        return "int64_t"
    return "float" if knobs["sums"] == "float" and signature.compute == "float32" else "double"


def scalars(names: Mapping[str, str]) -> str:
    """The lines that name the operator's numbers."""
    return "".join(f"    const C {name} = C(s[{place}]);\n" for place, name in enumerate(names))


def passes(several: Sequence[Pass], names: Mapping[str, str], knobs: Knobs) -> str:
    """The functions `pass_0`, `pass_1`, …: each runs over the reduced elements of `x`."""
    return pieces.joined(*(_pass(number, each, names, knobs) for number, each in enumerate(several)))


def _pass(number: int, which: Pass, names: Mapping[str, str], knobs: Knobs) -> str:
    loop = _lanes if knobs["loop"] == "lanes" else _elements
    return f"""
template <class C, class A>
static inline C pass_{number}(const A* x, const Nest& nest, C m, const double* s) {{
    const C n = C(nest.count), start = {LIMITS.get(which.start, which.start)};
{scalars(names)}{loop(which, knobs)}    return {in_language(which.finish, 0)};
}}
"""


def _elements(which: Pass, knobs: Knobs) -> str:
    return f"""    C t = start;
    for (int64_t i = 0; i < nest.count; ++i) {{
        const C v = load<C, A>(x[nest.place(i, {INPUT})]);
        t = {in_language(which.step, 0)};
    }}
"""


def _lanes(which: Pass, knobs: Knobs) -> str:
    step, merge = in_language(which.step, 0), in_language(which.merge, 0)
    return f"""    C lane[{knobs["lanes"]}];
    std::fill(lane, lane + {knobs["lanes"]}, start);
    const int64_t length = nest.length(), step = nest.step({INPUT});
    for (int64_t first = 0; first < nest.count; first += length) {{
        const A* from = x + nest.place(first, {INPUT});
        int64_t i = 0;
        if (step == 1)
            for (; i + {knobs["lanes"]} <= length; i += {knobs["lanes"]})
                for (int j = 0; j < {knobs["lanes"]}; ++j) {{
                    const C v = load<C, A>(from[i + j]), t = lane[j];
                    lane[j] = {step};
                }}
        for (; i < length; ++i) {{
            const C v = load<C, A>(from[i * step]), t = lane[i % {knobs["lanes"]}];
            lane[i % {knobs["lanes"]}] = {step};
        }}
    }}
    C t = lane[0];
    for (int j = 1; j < {knobs["lanes"]}; ++j) {{
        const C u = lane[j];
        t = {merge};
    }}
"""


def parallel(knobs: Knobs) -> str:
    """The line over the loop over what is kept."""
    if not knobs["threads"]:
        return ""
    enough = f"kept.count * reduced.count >= {knobs['grain']}"
    return f"    #pragma omp parallel for num_threads(threads) if ({enough})\n"


def called(several: Sequence[Pass]) -> list[str]:
    """All texts of passes, in C++."""
    return [in_language(text, 0) for each in several for text in (each.step, each.merge, each.finish)]
