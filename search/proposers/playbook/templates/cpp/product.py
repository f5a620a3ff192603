"""Matrix products in C++, also batched or added to a tensor, for any strides and types."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.operator_problem import tensor_names
from search.proposers.playbook.templates.cpp import machine, pieces
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
        name="register tile",
        text="Copy both factors into contiguous panels, and compute the output in tiles of rows by vectors "
        "whose sums stay in registers: every vector of the right factor serves all rows of the tile, every "
        "element of the left one all its vectors.",
        category=Category.MEMORY,
        gain=6.0,
        needs={"loop": ("elements", "columns")},
        sets={"loop": "tiles", "flags": pieces.FAST},
        varies={"tile_m": (8, 6, 12, 4), "tile_n": (3, 4, 2, 1)},
    ),
    Move(
        name="tile shape",
        text="Change the register tile and the unrolling over the depth: a wider tile needs fewer loads per "
        "multiply-add, until the sums no longer fit the registers.",
        category=Category.COMPUTE,
        gain=1.1,
        needs={"loop": ("tiles",)},
        varies={"tile_m": (6, 8, 12, 10, 14, 4), "tile_n": (4, 3, 2, 1), "unroll": (4, 1, 2)},
    ),
    Move(
        name="row blocks",
        text="Cut the rows into blocks that stay in the second-level cache while a panel of the right factor "
        "passes, which also gives the cores more and smaller tasks.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"loop": ("tiles",)},
        varies={"block_m": (192, 96, 384, 128)},
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
    "tile_m": 1,
    "tile_n": 1,
    "block_m": 0,
    "unroll": 1,
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
        """The types must be supported; a tile must fit the registers."""
        tile = int(knobs["tile_n"]) * (int(knobs["tile_m"]) + 1) + 1 <= machine.registers()
        return bool(_signatures(workload)) and (tile or knobs["loop"] != "tiles")

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        chosen = _signatures(workload)
        source = pieces.joined(
            ELEMENTS,
            (_tiles if knobs["loop"] == "tiles" else _loops)(knobs),
            *(_entry(place, each, knobs) for place, each in enumerate(chosen)),
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


def _tiles(knobs: Knobs) -> str:
    """The function `product`, in tiles of packed factors. The layout is that of `_loops`."""
    parallel = ["", ""]
    if knobs["threads"]:
        enough = f"num_threads(threads) if (batches * m * n * k >= {knobs['grain']})"
        parallel = [f"    #pragma omp parallel for {more}{enough}\n" for more in ("", "collapse(3) ")]
    return f"""
{pieces.REGISTER}
constexpr int64_t TILE_M = {knobs["tile_m"]}, TILE_N = {knobs["tile_n"]};
constexpr int64_t BLOCK_M = {knobs["block_m"]}, DEPTH = 256;

template <class C, class O, class A>
static void product(O* out, const A* added, const A* left, const A* right,
                    const int64_t* layout, const double* s, int threads) {{
    typedef C vec __attribute__((vector_size(REGISTER), aligned(sizeof(C)), may_alias));
    constexpr int64_t LANES = REGISTER / sizeof(C), WIDTH = TILE_N * LANES;
    const int64_t batches = layout[0], m = layout[1], n = layout[2], k = layout[3];
    const int64_t *l = layout + 4, *r = l + 3, *a = r + 3;
    const C beta = C(s[0]), alpha = C(s[1]);

    // The rows of each tile interleaved: [batch][tile][k][row of the tile], zero beyond the last row.
    const int64_t tiles = (m + TILE_M - 1) / TILE_M;
    const int64_t step = BLOCK_M ? std::max<int64_t>(BLOCK_M / TILE_M, 1) : std::max<int64_t>(tiles, 1);
    std::vector<C> packed(batches * tiles * TILE_M * k);
{parallel[0]}    for (int64_t tile = 0; tile < batches * tiles; ++tile)
        for (int64_t i = 0; i < std::min(TILE_M, m - tile % tiles * TILE_M); ++i) {{
            const A* from = left + tile / tiles * l[0] + (tile % tiles * TILE_M + i) * l[1];
            C* to = packed.data() + tile * k * TILE_M + i;
            for (int64_t d = 0; d < k; ++d)
                to[d * TILE_M] = load<C, A>(from[d * l[2]]);
        }}

{parallel[1]}    for (int64_t batch = 0; batch < batches; ++batch)
        for (int64_t first = 0; first < n; first += WIDTH)
            for (int64_t top = 0; top < tiles; top += step) {{
                const int64_t width = std::min(WIDTH, n - first);
                const A* columns = right + batch * r[0] + first * r[2];
                static thread_local std::vector<C> panel;  // [k][column], zero beyond the last column
                panel.assign(k * WIDTH, C(0));
                for (int64_t d = 0; d < k; ++d)
                    for (int64_t j = 0; j < width; ++j)
                        panel[d * WIDTH + j] = load<C, A>(columns[d * r[1] + j * r[2]]);
                for (int64_t tile = top; tile < std::min(top + step, tiles); ++tile) {{
                    const C* rows = packed.data() + (batch * tiles + tile) * k * TILE_M;
                    vec total[TILE_M][TILE_N] = {{}};
                    for (int64_t start = 0; start < k; start += DEPTH) {{  // sums of sums round less
                        const int64_t end = std::min(k, start + DEPTH);
                        vec part[TILE_M][TILE_N] = {{}};
                        #pragma GCC unroll {knobs["unroll"]}
                        for (int64_t d = start; d < end; ++d) {{
                            vec b[TILE_N];
                            for (int64_t j = 0; j < TILE_N; ++j)
                                b[j] = *(const vec*)(panel.data() + d * WIDTH + j * LANES);
                            for (int64_t i = 0; i < TILE_M; ++i)
                                for (int64_t j = 0; j < TILE_N; ++j)
                                    part[i][j] += rows[d * TILE_M + i] * b[j];
                        }}
                        for (int64_t i = 0; i < TILE_M; ++i)
                            for (int64_t j = 0; j < TILE_N; ++j)
                                total[i][j] += part[i][j];
                    }}
                    for (int64_t i = 0; i < std::min(TILE_M, m - tile * TILE_M); ++i) {{
                        const int64_t row = tile * TILE_M + i;
                        C sums[WIDTH];
                        memcpy(sums, total[i], sizeof(sums));
                        for (int64_t j = 0; j < width; ++j) {{
                            const int64_t more = batch * a[0] + row * a[1] + (first + j) * a[2];
                            C value = alpha * sums[j];
                            if (beta != 0)
                                value += beta * load<C, A>(added[more]);
                            out[(batch * m + row) * n + first + j] = store<O, C>(value);
                        }}
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
