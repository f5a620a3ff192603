"""The product of two matrices in C++: from three plain loops to register tiles over packed panels."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs, Move
from search.proposers.playbook.templates.cpp import machine, pieces
from search.proposers.playbook.templates.cpp.compiler_moves import native_vectors, optimiser
from search.proposers.playbook.templates.scaffold import cpp_kernel
from search.proposers.playbook.workload import Workload
from search.records.tree import Category

MOVES = (
    Move(
        name="threads",
        text="Spread the output over all cores with OpenMP: its parts are independent, so the speedup is "
        "the number of cores.",
        category=Category.PARALLELISM,
        gain=1.9,
        sets={"threads": True},
    ),
    optimiser("ijk", gain=1.1),
    native_vectors(("ikj", "tiles"), gain=6.0),
    Move(
        name="constant sizes",
        text="Make M, N and K compile-time constants, so that trip counts and strides fold into the code.",
        category=Category.CONTROL_FLOW,
        gain=1.05,
        sets={"constants": True},
    ),
    Move(
        name="row order",
        text="Order the loops i, k, j: the innermost one then runs along rows of B and of the output, which "
        "are contiguous, instead of down a column of B.",
        category=Category.CONTROL_FLOW,
        gain=4.0,
        needs={"algorithm": ("ijk",)},
        sets={"algorithm": "ikj"},
    ),
    Move(
        name="cache blocks",
        text="Walk through B in blocks of columns and depth that fit the second-level cache, so that a "
        "block is read from memory once and used by every row of A.",
        category=Category.MEMORY,
        gain=1.3,
        needs={"algorithm": ("ikj",)},
        varies={"block_k": (64, 128, 32, 256), "block_n": (512, 256, 128)},
    ),
    Move(
        name="register tile",
        text="Compute the output in tiles of rows by vectors whose sums stay in registers over the whole "
        "depth: every vector of B serves all rows of the tile, every element of A all its vectors.",
        category=Category.COMPUTE,
        gain=6.0,
        needs={"algorithm": ("ijk", "ikj")},
        sets={"algorithm": "tiles", "block_k": 0, "block_n": 0},
        varies={"tile_m": (8, 4, 12, 6), "tile_n": (3, 2, 4, 1)},
    ),
    Move(
        name="tile shape",
        text="Choose the register tile anew: the wider it is the fewer loads per multiply-add, until the "
        "sums no longer fit the registers.",
        category=Category.COMPUTE,
        gain=1.1,
        needs={"algorithm": ("tiles",)},
        varies={"tile_m": (8, 12, 6, 10, 14, 4), "tile_n": (3, 2, 4, 1)},
    ),
    Move(
        name="pack B",
        text="Copy each panel of B into a contiguous buffer before it is used: this avoids cache-line "
        "conflicts from a power-of-two stride, touches few pages, and gives the prefetcher one stream.",
        category=Category.MEMORY,
        gain=1.3,
        needs={"algorithm": ("tiles",), "pack": ("none",)},
        sets={"pack": "b"},
    ),
    Move(
        name="pack A too",
        text="Pack A as well, the rows of a tile interleaved, so that the inner loop reads both operands "
        "as two contiguous streams.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"algorithm": ("tiles",), "pack": ("none", "b")},
        sets={"pack": "both"},
    ),
    Move(
        name="row blocks",
        text="Cut the rows of A into blocks that stay in the second-level cache while all panels of B "
        "pass, which also gives the cores more and smaller tasks.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"algorithm": ("tiles",)},
        varies={"block_m": (192, 96, 384, 128), "schedule": ("static", "dynamic")},
    ),
    Move(
        name="depth blocks",
        text="Cut the depth into blocks, so that a panel's slice stays in the first-level cache over all "
        "rows; the sums are kept in the output between blocks.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"algorithm": ("tiles",)},
        varies={"block_k": (256, 384, 128, 192)},
    ),
    Move(
        name="unroll",
        text="Unroll the loop over the depth, so that counters and addresses cost less between "
        "multiply-adds.",
        category=Category.CONTROL_FLOW,
        gain=1.03,
        needs={"algorithm": ("tiles",)},
        varies={"unroll": (4, 2, 8)},
    ),
    Move(
        name="prefetch",
        text="Prefetch the panel of B some steps ahead into the first-level cache: it streams from the "
        "second level for each tile.",
        category=Category.LATENCY,
        gain=1.03,
        needs={"algorithm": ("tiles",)},
        varies={"prefetch": (8, 4, 16)},
    ),
    Move(
        name="dynamic schedule",
        text="Let cores take tasks as they finish, so that none waits at the end for a slower one.",
        category=Category.PARALLELISM,
        gain=1.02,
        needs={"threads": (True,), "schedule": ("static",)},
        sets={"schedule": "dynamic"},
    ),
)

NAIVE: Knobs = {
    "algorithm": "ijk",
    "flags": "-O2",
    "threads": False,
    "schedule": "static",
    "constants": False,
    "tile_m": 1,
    "tile_n": 1,
    "pack": "none",
    "block_m": 0,
    "block_n": 0,
    "block_k": 0,
    "unroll": 1,
    "prefetch": 0,
}


class Matmul:
    """The family of matrix product kernels."""

    op = "matmul"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 only. A tile must fit the registers and the output. Tiles that overlap at the edges cannot
        add to the results of an earlier block of the depth."""
        if workload.dtype != "float32":
            return False
        if knobs["algorithm"] != "tiles":
            return True
        m, n = int(knobs["tile_m"]), int(knobs["tile_n"]) * 16
        rows, cols = workload.sizes["M"], workload.sizes["N"]
        block_m = int(knobs["block_m"])
        if m > rows or n > cols or int(knobs["tile_n"]) * (m + 1) + 1 > machine.registers():
            return False
        even = rows % m == 0 and cols % n == 0
        return (even or not knobs["block_k"]) and (not block_m or (block_m % m == 0 and rows % block_m == 0))

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        bodies = {"ijk": _ijk, "ikj": _ikj, "tiles": _tiles}
        algorithm = str(knobs["algorithm"])
        includes = ["algorithm", "cstddef", "vector"] if algorithm == "tiles" else ["algorithm", "cstddef"]
        sizes = dict(workload.sizes)
        return cpp_kernel(
            summary=_summary(knobs),
            workload=workload,
            knobs=knobs,
            includes=includes,
            sizes=sizes,
            constants=bool(knobs["constants"]),
            source=bodies[algorithm](knobs),
            flags=pieces.flags(knobs),
            shapes={"a": [sizes["M"], sizes["K"]], "b": [sizes["K"], sizes["N"]]},
            weights=[],
            output=f"torch.empty({sizes['M']}, {sizes['N']})",
        )


TEMPLATE = Matmul()

SIGNATURE = 'extern "C" void run(const float* a, const float* b, float* out, int threads)'


def _summary(knobs: Knobs) -> str:
    if knobs["algorithm"] == "tiles":
        return f"matmul in C++: tiles of {knobs['tile_m']} rows x {knobs['tile_n']} vectors in registers."
    return f"matmul in C++: plain loops in the order {', '.join(str(knobs['algorithm']))}."


def _ijk(knobs: Knobs) -> str:
    return f"""
{SIGNATURE} {{
{pieces.parallel_for(knobs)}    for (int i = 0; i < M; ++i)
        for (int j = 0; j < N; ++j) {{
            float sum = 0.0f;
            for (int k = 0; k < K; ++k)
                sum += a[size_t(i) * K + k] * b[size_t(k) * N + j];
            out[size_t(i) * N + j] = sum;
        }}
}}
"""


def _ikj(knobs: Knobs) -> str:
    """Rows of the output as sums of scaled rows of B; with blocks, one block of B at a time."""
    start = f"""{pieces.parallel_for(knobs)}    for (int i = 0; i < M; ++i)
        std::fill(out + size_t(i) * N, out + size_t(i + 1) * N, 0.0f);
"""
    if not knobs["block_k"] and not knobs["block_n"]:
        return f"""
{SIGNATURE} {{
{start}{pieces.parallel_for(knobs)}    for (int i = 0; i < M; ++i)
        for (int k = 0; k < K; ++k)
            for (int j = 0; j < N; ++j)
                out[size_t(i) * N + j] += a[size_t(i) * K + k] * b[size_t(k) * N + j];
}}
"""
    return f"""
{SIGNATURE} {{
    const int depth = {knobs["block_k"] or "K"}, width = {knobs["block_n"] or "N"};  // of a block of B
{start}    for (int first = 0; first < K; first += depth)
        for (int left = 0; left < N; left += width)
{pieces.parallel_for(knobs, indent="            ")}            for (int i = 0; i < M; ++i)
                for (int k = first; k < std::min(first + depth, K); ++k)
                    for (int j = left; j < std::min(left + width, N); ++j)
                        out[size_t(i) * N + j] += a[size_t(i) * K + k] * b[size_t(k) * N + j];
}}
"""


def _tiles(knobs: Knobs) -> str:
    packs_a, packs_b = knobs["pack"] == "both", knobs["pack"] != "none"
    block_k, block_m = int(knobs["block_k"]), int(knobs["block_m"])
    unroll = f"    #pragma GCC unroll {knobs['unroll']}\n" if int(knobs["unroll"]) > 1 else ""
    ahead = ""
    if knobs["prefetch"]:
        ahead = f"""
        for (int j = 0; j < TILE_N; ++j)
            __builtin_prefetch(b + (k + {knobs["prefetch"]}) * ldb + j * LANES);"""
    element = "a[k * TILE_M + i]" if packs_a else "a[size_t(i) * K + k]"
    start = "first ? *(vec*)(out + size_t(i) * N + j * LANES) : vec{}" if block_k else "vec{}"
    first = ", int first" if block_k else ""
    tile = f"""
// One tile of the output over `depth` steps; b has rows `ldb` apart.
static inline void tile(const float* a, const float* b, size_t ldb, float* out, int depth{first}) {{
    vec sum[TILE_M][TILE_N];
    for (int i = 0; i < TILE_M; ++i)
        for (int j = 0; j < TILE_N; ++j)
            sum[i][j] = {start};
{unroll}    for (int k = 0; k < depth; ++k) {{{ahead}
        vec right[TILE_N];
        for (int j = 0; j < TILE_N; ++j)
            right[j] = *(const vec*)(b + k * ldb + j * LANES);
        for (int i = 0; i < TILE_M; ++i)
            for (int j = 0; j < TILE_N; ++j)
                sum[i][j] += {element} * right[j];
    }}
    for (int i = 0; i < TILE_M; ++i)
        for (int j = 0; j < TILE_N; ++j)
            *(vec*)(out + size_t(i) * N + j * LANES) = sum[i][j];
}}
"""
    return pieces.joined(
        f"""{pieces.VEC}
constexpr int TILE_M = {knobs["tile_m"]}, TILE_N = {knobs["tile_n"]}, WIDTH = TILE_N * LANES;""",
        tile,
        _pack_a(knobs) if packs_a else "",
        _panel(packs_a, packs_b, block_k),
        f"""
{SIGNATURE} {{
    const int rows = {block_m or "M"};  // of a task
{_packed_a() if packs_a else ""}{pieces.parallel_for(knobs, 2)}    for (int left = 0; left < N; left += WIDTH)
        for (int top = 0; top < M; top += rows)
            panel({"packed.data()" if packs_a else "a"}, b, out, std::min(left, N - WIDTH),
                  top, std::min(top + rows, M));
}}
""",
    )


def _pack_a(knobs: Knobs) -> str:
    return f"""
// The rows of each tile interleaved: [tile][k][row of the tile]; the last tile overlaps the one before.
static void pack(const float* a, float* to, int threads) {{
{pieces.parallel_for(knobs)}    for (int next = 0; next < M; next += TILE_M)
        for (int i = 0; i < TILE_M; ++i)
            for (int k = 0; k < K; ++k)
                to[size_t(next) * K + k * TILE_M + i] = a[size_t(std::min(next, M - TILE_M) + i) * K + k];
}}
"""


def _packed_a() -> str:
    return """    std::vector<float> packed(size_t(M + TILE_M) * K);
    pack(a, packed.data(), threads);
"""


def _panel(packs_a: bool, packs_b: bool, block_k: int) -> str:
    """The tiles of some rows of one panel of columns."""
    pack = ""
    if packs_b:
        pack = """    static thread_local std::vector<float> copy;
    copy.resize(size_t(K) * WIDTH);
    for (int k = 0; k < K; ++k)
        std::copy_n(b + size_t(k) * N + left, WIDTH, copy.data() + size_t(k) * WIDTH);
"""
    ldb = "WIDTH" if packs_b else "N"
    source = "copy.data()" if packs_b else "b + left"
    where = "size_t(next) * K" if packs_a else "size_t(i) * K"
    target = "out + size_t(i) * N + left"
    if block_k:
        start = "first * TILE_M" if packs_a else "first"
        loop = f"    for (int first = 0; first < K; first += {block_k})\n        "
        left = f"a + {where} + {start}, {source} + size_t(first) * {ldb}, {ldb}"
        call = f"tile({left},\n                 {target}, std::min({block_k}, K - first), first);"
    else:
        loop, call = "    ", f"tile(a + {where}, {source}, {ldb}, {target}, K);"
    return f"""
// Rows [top, bottom) of the columns from `left` on; the last tile overlaps the one before.
static void panel(const float* a, const float* b, float* out, int left, int top, int bottom) {{
{pack}{loop}for (int next = top; next < bottom; next += TILE_M) {{
            const int i = std::min(next, M - TILE_M);
            {call}
        }}
}}
"""
