"""Matrix products in C++, also batched or added to a tensor, for any strides and types."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.operator_problem import tensor_names
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.templates.cpp.operator_pieces import (
    ELEMENTS,
    KNOWN,
    TYPES,
    compute_types,
    operator_kernel,
)
from search.proposers.playbook.templates.operator_moves import OPTIMISER, REMEMBER
from search.proposers.playbook.templates.operator_pieces import (
    CONTIGUOUS,
    SPREAD,
    kept,
    product_plan,
    product_scalars,
    product_tensors,
)
from search.proposers.playbook.workload import Signature, Workload
from search.records.tree import Category

MOVES = (
    REMEMBER,
    OPTIMISER,
    Move(
        name="columns",
        text="Compute several neighbouring columns at once: each element of the left matrix is loaded once "
        "for all of them, and contiguous columns become vectors.",
        category=Category.COMPUTE,
        gain=3.0,
        needs={"loop": ("elements",)},
        sets={"loop": "columns"},
        varies={"columns": (16, 32, 64)},
    ),
    Move(
        name="single sums",
        text="Add float32 elements in float32, as PyTorch does: twice as many fit into a vector.",
        category=Category.PRECISION,
        gain=1.3,
        needs={"sums": ("double",)},
        sets={"sums": "float"},
    ),
    Move(
        name="threads",
        text="Spread the rows of large products over all cores, and compute small products on one.",
        category=Category.PARALLELISM,
        gain=1.2,
        sets={"threads": True},
        varies={"grain": (262144, 65536, 1048576)},
    ),
)
NAIVE: Knobs = {
    "loop": "elements",
    "columns": 16,
    "sums": "double",
    "flags": "-O2",
    "merged": False,
    "remembered": False,
    "threads": False,
    "grain": 262144,
}


class Product:
    """The family of matrix products."""

    op = "product"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """The types must be supported."""
        return bool(_signatures(workload))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        chosen = _signatures(workload)
        source = pieces.joined(
            ELEMENTS, _loops(knobs), *(_entry(place, each, knobs) for place, each in enumerate(chosen))
        )
        pointers = ", ".join(
            "None" if each is None else f"{each}.data_ptr()" for each in product_tensors(workload)
        )
        forward = f"""
shape, layout = plan({_given("shape", workload)}, {_given("stride()", workload)})
layout = (ctypes.c_int64 * len(layout))(*layout)
out = torch.empty(shape, dtype=dtypes[0])
numbers = doubles({product_scalars(workload)})
run(out.data_ptr(), {pointers}, layout, numbers, torch.get_num_threads())
return out
"""
        return operator_kernel(
            summary=f"{workload.operator} in C++.",
            workload=workload,
            knobs=knobs,
            source=source,
            chosen=chosen,
            helpers=[SPREAD, CONTIGUOUS],
            plan=product_plan(workload),
            forward=forward,
            pointers=4,
        )


TEMPLATE = Product()


def _signatures(workload: Workload) -> list[Signature]:
    """The signatures in which all tensors have one type."""
    return [each for each in kept(workload, KNOWN) if len({*each.tensors}) == 1]


def _given(what: str, workload: Workload) -> str:
    names = tensor_names(workload.operator)
    return f"({', '.join(f'{each}.{what}' for each in names)},)"


def _loops(knobs: Knobs) -> str:
    """The function `product`. Its layout has batches, rows, columns and depth, then the strides of both
    factors and of the added tensor."""
    parallel = ""
    if knobs["threads"]:
        enough = f"batches * m * n * k >= {knobs['grain']}"
        parallel = f"    #pragma omp parallel for num_threads(threads) if ({enough})\n"
    width = 1 if knobs["loop"] == "elements" else knobs["columns"]
    return f"""
template <class C, class O, class A>
static void product(O* out, const A* added, const A* left, const A* right,
                    const int64_t* layout, const double* s, int threads) {{
    constexpr int64_t WIDTH = {width}, DEPTH = 32;
    const int64_t batches = layout[0], m = layout[1], n = layout[2], k = layout[3];
    const int64_t *l = layout + 4, *r = l + 3, *a = r + 3;
    const C beta = C(s[0]), alpha = C(s[1]);
{parallel}    for (int64_t row = 0; row < batches * m; ++row) {{
        const int64_t batch = row / m, i = row % m;
        const A* from = left + batch * l[0] + i * l[1];
        for (int64_t first = 0; first < n; first += WIDTH) {{
            const int64_t width = first + WIDTH <= n ? WIDTH : n - first;
            const A* columns = right + batch * r[0] + first * r[2];
            C sums[WIDTH] = {{}};
            for (int64_t start = 0; start < k; start += DEPTH) {{  // sums of sums round less
                const int64_t end = std::min(k, start + DEPTH);
                C parts[WIDTH] = {{}};
                if (width == WIDTH && r[2] == 1)
                    for (int64_t d = start; d < end; ++d)
                        for (int64_t j = 0; j < WIDTH; ++j)
                            parts[j] += load<C, A>(from[d * l[2]]) * load<C, A>(columns[d * r[1] + j]);
                else
                    for (int64_t d = start; d < end; ++d)
                        for (int64_t j = 0; j < width; ++j)
                            parts[j] += load<C, A>(from[d * l[2]]) * load<C, A>(columns[d * r[1] + j * r[2]]);
                for (int64_t j = 0; j < width; ++j)
                    sums[j] += parts[j];
            }}
            for (int64_t j = 0; j < width; ++j) {{
                C value = alpha * sums[j];
                if (beta != 0)
                    value += beta * load<C, A>(added[batch * a[0] + i * a[1] + (first + j) * a[2]]);
                out[row * n + first + j] = store<O, C>(value);
            }}
        }}
    }}
}}
"""


def _entry(place: int, signature: Signature, knobs: Knobs) -> str:
    out, kind = TYPES[signature.outputs[0]], TYPES[signature.tensors[0]]
    casts = ", ".join(f"(const {kind}*)p{n}" for n in range(1, 4))
    return f"""extern "C" void run_{place}(void* p0, void* p1, void* p2, void* p3,
                      int64_t* layout, double* s, int threads) {{
    product<{compute_types(signature, knobs)[0]}, {out}, {kind}>(({out}*)p0, {casts}, layout, s, threads);
}}"""
