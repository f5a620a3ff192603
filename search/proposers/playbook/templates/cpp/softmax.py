"""Softmax over rows in C++: from three plain passes to vectors that write the output once.

The fast algorithms take the exponential by a polynomial of degree 7 (error about 1 ulp) and add in blocks, so
that the sum over a long row is as accurate as PyTorch's.
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


VECTORS = ("in place", "scratch", "online")

MOVES = (
    Move(
        name="threads",
        text="Spread the rows over all cores with OpenMP: they are independent, so the speedup is the "
        "number of cores until memory is the limit.",
        category=Category.PARALLELISM,
        gain=1.8,
        sets={"threads": True},
    ),
    replace(OPTIMISER, needs={"algorithm": ("plain",), **OPTIMISER.needs}),
    native_vectors(VECTORS, gain=2.5),
    Move(
        name="vector exponential",
        text="Take sixteen exponentials at a time with a polynomial after reduction by multiples of ln 2, "
        "exact to about one ulp, in place of a library call for each element.",
        category=Category.COMPUTE,
        gain=5.0,
        needs={"algorithm": ("plain",)},
        sets={"algorithm": "in place"},
        varies={"unroll": (2, 4, 1)},
    ),
    Move(
        name="scratch row",
        text="Keep a row's exponentials in a scratch row in cache and write each output once, already "
        "scaled: the output is not read back.",
        category=Category.MEMORY,
        gain=1.2,
        needs={"algorithm": ("in place", "online")},
        sets={"algorithm": "scratch"},
        varies={"unroll": (2, 4, 1)},
    ),
    Move(
        name="online sum",
        text="Find maximum and sum in one pass, rescaling the sum when the maximum grows, and take the "
        "exponential again as the output is written: fewer passes over the row for a second "
        "exponential.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"algorithm": ("in place", "scratch")},
        sets={"algorithm": "online"},
        varies={"unroll": (2, 4, 1)},
    ),
    Move(
        name="streaming stores",
        text="Write the output with streaming stores: its cache lines are not read before they are "
        "overwritten and do not push the row out of the cache.",
        category=Category.MEMORY,
        gain=1.2,
        needs={"algorithm": ("scratch", "online"), "stores": ("cached",), "flags": (FAST,)},
        applies=_aligned,
        sets={"stores": "streaming"},
    ),
    Move(
        name="huge pages",
        text="Ask for huge pages for the output before it is first written: its thousands of page faults, "
        "one for each 4 KiB, become a handful of 2 MiB.",
        category=Category.LATENCY,
        gain=2.0,
        needs={"pages": ("small",)},
        sets={"pages": "huge"},
    ),
    Move(
        name="constant sizes",
        text="Make the row's length a compile-time constant, so that loops need no remainder and no "
        "counters.",
        category=Category.CONTROL_FLOW,
        gain=1.03,
        sets={"constants": True},
    ),
    Move(
        name="more chains",
        text="Run several independent vectors through each loop, so that one exponential's latency hides "
        "behind the others'.",
        category=Category.LATENCY,
        gain=1.1,
        needs={"algorithm": VECTORS, "flags": (FAST,)},
        varies={"unroll": (4, 2, 8, 1)},
    ),
    Move(
        name="prefetch",
        text="Prefetch the row some cache lines ahead during the first pass, which is the one that waits "
        "for memory.",
        category=Category.LATENCY,
        gain=1.05,
        needs={"algorithm": VECTORS},
        varies={"prefetch": (16, 32, 8, 64)},
    ),
    Move(
        name="dynamic schedule",
        text="Let cores take a few rows at a time as they finish, so that none waits at the end.",
        category=Category.PARALLELISM,
        gain=1.02,
        needs={"threads": (True,), "schedule": ("static",)},
        varies={"schedule": ("dynamic", "dynamic, 4")},
    ),
    Move(
        name="sum block",
        text="Choose how many vectors are added before the partial sum is put away: longer blocks mean "
        "less work between them, shorter ones less rounding.",
        category=Category.PRECISION,
        gain=1.01,
        needs={"algorithm": VECTORS},
        varies={"block": (128, 256, 32)},
    ),
)

NAIVE: Knobs = {
    "algorithm": "plain",
    "flags": "-O2",
    "threads": False,
    "schedule": "static",
    "constants": False,
    "unroll": 1,
    "block": 64,
    "stores": "cached",
    "prefetch": 0,
    "pages": "small",
}


class Softmax:
    """The family of softmax kernels."""

    op = "softmax"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 only; streaming stores need whole, aligned vectors in an output that is written once."""
        if workload.dtype != "float32" or int(knobs["block"]) % int(knobs["unroll"]):
            return False
        once = knobs["algorithm"] in ("scratch", "online")
        return knobs["stores"] == "cached" or (once and _aligned(workload, knobs))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        plain = knobs["algorithm"] == "plain"
        includes = ["algorithm", "cmath", "cstddef"] if plain else ["algorithm", "cstring", "vector"]
        includes += ["cstdint", "sys/mman.h"] if knobs["pages"] == "huge" else []
        return cpp_kernel(
            summary="softmax in C++: " + _SUMMARIES[str(knobs["algorithm"])],
            workload=workload,
            knobs=knobs,
            includes=includes,
            sizes=workload.sizes,
            constants=bool(knobs["constants"]),
            source=_source(knobs),
            flags=pieces.flags(knobs),
            shapes={"x": workload.shape},
            weights=[],
            output="torch.empty_like(x)",
        )


TEMPLATE = Softmax()

_SUMMARIES = {
    "plain": "three plain passes over each row.",
    "in place": "maximum, exponentials into the output, scaled there; all in vectors.",
    "scratch": "maximum, exponentials into a scratch row, scaled into the output; all in vectors.",
    "online": "maximum and sum in one pass, exponentials again as the output is written; all in vectors.",
}


def _source(knobs: Knobs) -> str:
    plain, huge = knobs["algorithm"] == "plain", knobs["pages"] == "huge"
    pages = "    huge_pages(out, size_t(rows) * cols * sizeof(float));\n" if huge else ""
    run = f"""
extern "C" void run(const float* x, float* out, int threads) {{
{pages}{pieces.parallel_for(knobs)}    for (int row = 0; row < rows; ++row)
        softmax(x + size_t(row) * cols, out + size_t(row) * cols);
}}
"""
    if plain:
        return pieces.joined(_PLAIN, pieces.HUGE_PAGES if huge else "", run)
    head = f"""{pieces.VEC}
constexpr int UNROLL = {knobs["unroll"]}, STEP = UNROLL * LANES, BLOCK = {knobs["block"]} * LANES;"""
    return pieces.joined(
        head,
        pieces.EXP,
        pieces.STREAM if knobs["stores"] == "streaming" else "",
        pieces.HUGE_PAGES if huge else "",
        _row(knobs),
        run,
    )


_PLAIN = """
static void softmax(const float* x, float* out) {
    float largest = x[0];
    for (int i = 1; i < cols; ++i)
        largest = std::max(largest, x[i]);
    double sum = 0.0;
    for (int i = 0; i < cols; ++i) {
        out[i] = std::exp(x[i] - largest);
        sum += out[i];
    }
    for (int i = 0; i < cols; ++i)
        out[i] = out[i] / sum;
}
"""


def _row(knobs: Knobs) -> str:
    passes = {"in place": _two_sweeps, "scratch": _two_sweeps, "online": _online}
    return passes[str(knobs["algorithm"])](knobs)


def _ahead(knobs: Knobs) -> str:
    if not knobs["prefetch"]:
        return ""
    return f"""
        for (int j = 0; j < UNROLL; ++j)
            __builtin_prefetch(x + i + ({knobs["prefetch"]} + j) * LANES);"""


def _put(knobs: Knobs, value: str) -> str:
    if knobs["stores"] == "streaming":
        return f"stream(out + i, {value});"
    return f"*(vec*)(out + i) = {value};"


def _maximum(knobs: Knobs) -> str:
    return f"""    vec largest[UNROLL];
    for (int j = 0; j < UNROLL; ++j)
        largest[j] = vec{{}} - __builtin_inff();
    int i = 0;
    for (; i + STEP <= cols; i += STEP) {{{_ahead(knobs)}
        for (int j = 0; j < UNROLL; ++j) {{
            vec value = *(const vec*)(x + i + j * LANES);
            largest[j] = value > largest[j] ? value : largest[j];
        }}
    }}
    float top = -__builtin_inff();
    for (; i < cols; ++i)
        top = std::max(top, x[i]);
    for (int j = 0; j < UNROLL; ++j)
        for (int lane = 0; lane < LANES; ++lane)
            top = std::max(top, largest[j][lane]);
"""


def _two_sweeps(knobs: Knobs) -> str:
    """Maximum; exponentials and their sum; scaling, from where the exponentials were put."""
    scratch = knobs["algorithm"] == "scratch"
    target = "scratch" if scratch else "out"
    buffer = """    static thread_local std::vector<float> buffer;
    buffer.resize(cols);
    float* scratch = buffer.data();
"""
    return f"""
static void softmax(const float* x, float* out) {{
{buffer if scratch else ""}{_maximum(knobs)}
    double sum = 0.0;
    for (int first = 0; first < cols; first += BLOCK) {{
        const int end = std::min(first + BLOCK, cols);
        vec part[UNROLL] = {{}};
        for (i = first; i + STEP <= end; i += STEP)
            for (int j = 0; j < UNROLL; ++j) {{
                vec power = exponential(*(const vec*)(x + i + j * LANES) - top);
                *(vec*)({target} + i + j * LANES) = power;
                part[j] += power;
            }}
        for (; i < end; ++i)
            sum += {target}[i] = exponential(vec{{}} + (x[i] - top))[0];
        for (int j = 1; j < UNROLL; ++j)
            part[0] += part[j];
        for (int lane = 0; lane < LANES; ++lane)
            sum += part[0][lane];
    }}

    const float scale = 1.0 / sum;
    for (i = 0; i + LANES <= cols; i += LANES)
        {_put(knobs, f"*(const vec*)({target} + i) * scale")}
    for (; i < cols; ++i)
        out[i] = {target}[i] * scale;
}}
"""


def _online(knobs: Knobs) -> str:
    """Maximum and sum in one pass by blocks; the second pass takes the exponentials again."""
    return f"""
static void softmax(const float* x, float* out) {{
    float top = -__builtin_inff();
    double sum = 0.0;
    int i = 0;
    for (int first = 0; first < cols; first += BLOCK) {{
        const int end = std::min(first + BLOCK, cols);
        vec largest = vec{{}} - __builtin_inff();
        for (i = first; i + LANES <= end; i += LANES) {{{_ahead(knobs)}
            vec value = *(const vec*)(x + i);
            largest = value > largest ? value : largest;
        }}
        const float before = top;
        for (; i < end; ++i)
            top = std::max(top, x[i]);
        for (int lane = 0; lane < LANES; ++lane)
            top = std::max(top, largest[lane]);
        if (top > before)
            sum *= exponential(vec{{}} + (before - top))[0];

        vec part[UNROLL] = {{}};
        for (i = first; i + STEP <= end; i += STEP)
            for (int j = 0; j < UNROLL; ++j)
                part[j] += exponential(*(const vec*)(x + i + j * LANES) - top);
        for (; i < end; ++i)
            sum += exponential(vec{{}} + (x[i] - top))[0];
        for (int j = 1; j < UNROLL; ++j)
            part[0] += part[j];
        for (int lane = 0; lane < LANES; ++lane)
            sum += part[0][lane];
    }}

    const float scale = 1.0 / sum;
    for (i = 0; i + LANES <= cols; i += LANES)
        {_put(knobs, "exponential(*(const vec*)(x + i) - top) * scale")}
    for (; i < cols; ++i)
        out[i] = exponential(vec{{}} + (x[i] - top))[0] * scale;
}}
"""
