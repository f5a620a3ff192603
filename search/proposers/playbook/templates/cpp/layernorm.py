"""Layer normalisation in C++: from three plain passes to vectors with block-wise moments.

The fast algorithm takes mean and squared deviations of short blocks while they are in the first-level cache
and merges them in double precision (Chan, Golub and LeVeque's update): a shifted mean costs no accuracy.
"""

from __future__ import annotations

from dataclasses import replace

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.templates.cpp.compiler_moves import native_vectors
from search.proposers.playbook.templates.operator_moves import OPTIMISER
from search.proposers.playbook.templates.scaffold import cpp_kernel
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

FAST = pieces.FAST


def _aligned(workload: Workload, knobs: Knobs) -> bool:
    return workload.sizes["cols"] % 16 == 0


MOVES = (
    Move(
        name="row threads",
        text="Spread the rows over all cores with OpenMP: they are independent.",
        category=Category.PARALLELISM,
        gain=1.8,
        needs={"threads": (False,)},
        sets={"threads": True, "split": "rows"},
    ),
    Move(
        name="threads within rows",
        text="Let all cores work on one row at a time, each on a part: the row, its scale and its shift "
        "stay in the shared cache, and few rows are no limit.",
        category=Category.PARALLELISM,
        gain=1.7,
        sets={"threads": True, "split": "columns"},
    ),
    replace(OPTIMISER, needs={"algorithm": ("plain",), **OPTIMISER.needs}),
    native_vectors(("blocks",), gain=2.5),
    Move(
        name="block moments",
        text="Take mean and squared deviations block by block while a block is in the first-level cache "
        "and merge the blocks' moments: one pass over memory in place of two, in vectors, stable for "
        "any mean.",
        category=Category.MEMORY,
        gain=4.0,
        needs={"algorithm": ("plain",)},
        sets={"algorithm": "blocks"},
        varies={"block": (2048, 4096, 1024)},
    ),
    Move(
        name="block length",
        text="Choose the length of a block anew: it must fit the first-level cache, and longer ones are "
        "merged less often.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"algorithm": ("blocks",)},
        varies={"block": (1024, 2048, 4096, 8192)},
    ),
    Move(
        name="more chains",
        text="Keep several independent vector sums in flight, so that an addition need not wait for the "
        "one before.",
        category=Category.COMPUTE,
        gain=1.2,
        needs={"algorithm": ("blocks",)},
        varies={"unroll": (4, 8, 2)},
    ),
    Move(
        name="backwards",
        text="Normalise the row from its end to its start: the part read last in the first pass is still "
        "in the second-level cache, where the start has been pushed out.",
        category=Category.CONTROL_FLOW,
        gain=1.1,
        needs={"algorithm": ("blocks",), "order": ("forwards",)},
        sets={"order": "backwards"},
    ),
    Move(
        name="streaming stores",
        text="Write the output with streaming stores: its cache lines are not read before they are "
        "overwritten and do not push the row out of the cache.",
        category=Category.MEMORY,
        gain=1.15,
        needs={"algorithm": ("blocks",), "stores": ("cached",), "flags": (FAST,)},
        applies=_aligned,
        sets={"stores": "streaming"},
    ),
    Move(
        name="huge pages",
        text="Ask for huge pages for the output before it is first written: its thousands of page faults, "
        "one for each 4 KiB, become a handful of 2 MiB.",
        category=Category.LATENCY,
        gain=1.3,
        needs={"pages": ("small",)},
        sets={"pages": "huge"},
    ),
    Move(
        name="prefetch",
        text="Prefetch some cache lines ahead in the pass that computes the moments, which is the one that"
        " waits for memory.",
        category=Category.LATENCY,
        gain=1.05,
        needs={"algorithm": ("blocks",)},
        varies={"prefetch": (16, 32, 64, 8)},
    ),
    Move(
        name="constant sizes",
        text="Make the row's length a compile-time constant, so that loops need no remainder.",
        category=Category.CONTROL_FLOW,
        gain=1.03,
        sets={"constants": True},
    ),
)

NAIVE: Knobs = {
    "algorithm": "plain",
    "flags": "-O2",
    "threads": False,
    "split": "rows",
    "constants": False,
    "block": 1024,
    "unroll": 1,
    "order": "forwards",
    "stores": "cached",
    "prefetch": 0,
    "pages": "small",
}


class LayerNorm:
    """The family of layer normalisation kernels."""

    op = "layernorm"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 only; only the vector algorithm splits rows, and streaming stores need whole vectors."""
        if workload.dtype != "float32" or (knobs["split"] == "columns" and not knobs["threads"]):
            return False
        blocks = knobs["algorithm"] == "blocks"
        streams = knobs["stores"] == "streaming"
        return (blocks or knobs["split"] == "rows") and (
            not streams or (blocks and _aligned(workload, knobs))
        )

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        affine = [name for name, key in (("weight", "affine"), ("bias", "bias")) if workload.sizes[key]]
        includes = ["algorithm", "cmath", "cstddef"]
        includes += ["vector"] if knobs["split"] == "columns" else []
        includes += ["cstdint", "sys/mman.h"] if knobs["pages"] == "huge" else []
        how = (
            "block-wise moments in vectors"
            if knobs["algorithm"] == "blocks"
            else "three plain passes over each row"
        )
        return cpp_kernel(
            summary=f"layer_norm in C++: {how}.",
            workload=workload,
            knobs=knobs,
            includes=includes,
            sizes={name: workload.sizes[name] for name in ("rows", "cols")},
            constants=bool(knobs["constants"]),
            source=_source(workload, knobs, affine),
            flags=pieces.flags(knobs),
            shapes={"x": workload.shape},
            weights=affine,
            output="torch.empty_like(x)",
        )


TEMPLATE = LayerNorm()


def _source(workload: Workload, knobs: Knobs, affine: list[str]) -> str:
    parameters = "".join(f", const float* {name}" for name in affine)
    given = "".join(f", {name}" for name in affine)
    huge = knobs["pages"] == "huge"
    pages = "    huge_pages(out, size_t(rows) * cols * sizeof(float));\n" if huge else ""
    rows = _rows_split if knobs["split"] == "columns" else _rows_apart
    run = f"""
extern "C" void run(const float* x{parameters}, float* out, int threads) {{
{pages}{rows(knobs, given)}}}
"""
    shared = pieces.HUGE_PAGES if huge else ""
    eps = f"constexpr double EPS = {workload.eps!r};"
    if knobs["algorithm"] == "plain":
        return pieces.joined(eps, shared, _plain(parameters, affine), run)
    head = f"""{pieces.VEC}
constexpr int UNROLL = {knobs["unroll"]}, STEP = UNROLL * LANES, BLOCK = {knobs["block"]};
{eps}"""
    return pieces.joined(
        head,
        shared,
        pieces.STREAM if knobs["stores"] == "streaming" else "",
        _moments(knobs),
        _normalise(knobs, parameters, affine),
        run,
    )


def _rows_apart(knobs: Knobs, given: str) -> str:
    if knobs["algorithm"] == "plain":
        body = f"        layer_norm(x + size_t(row) * cols{given}, out + size_t(row) * cols);\n"
        return f"{pieces.parallel_for(knobs)}    for (int row = 0; row < rows; ++row)\n{body}"
    return f"""{pieces.parallel_for(knobs)}    for (int row = 0; row < rows; ++row) {{
        const Moments all = moments(x + size_t(row) * cols, 0, cols);
        normalise(x + size_t(row) * cols{given}, out + size_t(row) * cols, all, 0, cols);
    }}
"""


def _rows_split(knobs: Knobs, given: str) -> str:
    return f"""    const int part = (cols / threads + BLOCK) / LANES * LANES;  // of a row, for one thread
    std::vector<Moments> found(threads);
    #pragma omp parallel num_threads(threads)
    for (int row = 0; row < rows; ++row) {{
        #pragma omp for schedule(static, 1)
        for (int t = 0; t < threads; ++t)
            found[t] = moments(x + size_t(row) * cols, std::min(t * part, cols),
                               std::min((t + 1) * part, cols));
        Moments all;
        for (const Moments& each : found)
            all = merged(all, each);
        #pragma omp for schedule(static, 1)
        for (int t = 0; t < threads; ++t)
            normalise(x + size_t(row) * cols{given}, out + size_t(row) * cols, all,
                      std::min(t * part, cols), std::min((t + 1) * part, cols));
    }}
"""


def _scaled(value: str, affine: list[str], each: str) -> str:
    scaled = f"{value} * {each.format('weight')}" if "weight" in affine else value
    return f"{scaled} + {each.format('bias')}" if "bias" in affine else scaled


def _plain(parameters: str, affine: list[str]) -> str:
    return f"""
static void layer_norm(const float* x{parameters}, float* out) {{
    double sum = 0.0;
    for (int i = 0; i < cols; ++i)
        sum += x[i];
    const double mean = sum / cols;
    double squares = 0.0;
    for (int i = 0; i < cols; ++i)
        squares += (x[i] - mean) * (x[i] - mean);
    const double scale = 1.0 / std::sqrt(squares / cols + EPS);
    for (int i = 0; i < cols; ++i)
        out[i] = {_scaled("(x[i] - mean) * scale", affine, "{}[i]")};
}}
"""


def _moments(knobs: Knobs) -> str:
    ahead = ""
    if knobs["prefetch"]:
        ahead = f"""
            for (int j = 0; j < UNROLL; ++j)
                __builtin_prefetch(x + i + ({knobs["prefetch"]} + j) * LANES);"""
    return f"""
// Of some values: how many, their mean, and the sum of their squared deviations from it.
struct Moments {{
    double count = 0.0, mean = 0.0, squares = 0.0;
}};

static inline Moments merged(const Moments& a, const Moments& b) {{
    const double count = a.count + b.count, apart = b.mean - a.mean;
    if (count == 0.0)
        return a;
    const double squares = a.squares + b.squares + apart * apart * a.count * b.count / count;
    return {{count, a.mean + apart * b.count / count, squares}};
}}

static double total(vec* parts) {{
    for (int j = 1; j < UNROLL; ++j)
        parts[0] += parts[j];
    double sum = 0.0;
    for (int lane = 0; lane < LANES; ++lane)
        sum += parts[0][lane];
    return sum;
}}

// Of x[begin .. end).
static Moments moments(const float* x, int begin, int end) {{
    Moments all;
    for (int first = begin; first < end; first += BLOCK) {{
        const int last = std::min(first + BLOCK, end);
        const vec shift = vec{{}} + x[first];  // near the block's mean, where the mean is far from zero
        vec sums[UNROLL] = {{}};
        int i = first;
        for (; i + STEP <= last; i += STEP) {{{ahead}
            for (int j = 0; j < UNROLL; ++j)
                sums[j] += *(const vec*)(x + i + j * LANES) - shift;
        }}
        double sum = 0.0;
        for (; i < last; ++i)
            sum += x[i] - x[first];
        const double mean = (sum + total(sums)) / (last - first) + x[first];

        const vec centre = vec{{}} + float(mean);
        vec squares[UNROLL] = {{}};
        for (i = first; i + STEP <= last; i += STEP)
            for (int j = 0; j < UNROLL; ++j) {{
                vec apart = *(const vec*)(x + i + j * LANES) - centre;
                squares[j] += apart * apart;
            }}
        double square = 0.0;
        for (; i < last; ++i)
            square += (x[i] - mean) * (x[i] - mean);
        all = merged(all, {{double(last - first), mean, square + total(squares)}});
    }}
    return all;
}}
"""


def _normalise(knobs: Knobs, parameters: str, affine: list[str]) -> str:
    value = _scaled("(*(const vec*)(x + i) - mean) * scale", affine, "*(const vec*)({} + i)")
    put = f"stream(out + i, {value});" if knobs["stores"] == "streaming" else f"*(vec*)(out + i) = {value};"
    tail = _scaled("(x[i] - mean) * scale", affine, "{}[i]")
    if knobs["order"] == "backwards":
        loops = f"""    int whole = begin + (end - begin) / LANES * LANES;
    for (int i = whole; i < end; ++i)
        out[i] = {tail};
    for (int i = whole - LANES; i >= begin; i -= LANES)
        {put}
"""
    else:
        loops = f"""    int i = begin;
    for (; i + LANES <= end; i += LANES)
        {put}
    for (; i < end; ++i)
        out[i] = {tail};
"""
    return f"""
// Writes out[begin .. end).
static void normalise(const float* x{parameters}, float* out, const Moments& all, int begin, int end) {{
    const float mean = all.mean, scale = 1.0 / std::sqrt(all.squares / all.count + EPS);
{loops}}}
"""
