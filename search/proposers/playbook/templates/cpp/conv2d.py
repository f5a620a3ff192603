"""2-D convolution in C++, alone or followed by ReLU and max-pool: from seven plain loops to register tiles.

The fast algorithm computes one output row at a time, channels innermost ("row"): a tile of `tile_q`
neighbouring pixels by `tile_k` vectors of channels stays in registers over the whole window, so that each
weight vector is loaded once a tile and each pixel is a broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping

from search.proposers.playbook.move import Knob, Knobs, Move
from search.proposers.playbook.templates.cpp import machine, pieces
from search.proposers.playbook.templates.scaffold import cpp_kernel
from search.proposers.playbook.workload import Workload
from search.tree import Category

FAST = pieces.FAST


def _has_relu(workload: Workload, knobs: Knobs) -> bool:
    return "relu" in workload.epilogue


def _has_pool(workload: Workload, knobs: Knobs) -> bool:
    return "maxpool" in workload.epilogue


def _bf16_allowed(workload: Workload, knobs: Knobs) -> bool:
    return "bfloat16" in workload.lower and machine.has("avx512_bf16")


def _rounds_up(workload: Workload, knobs: Knobs) -> bool:
    return workload.sizes["dilation_w"] == 1 and _bf16_allowed(workload, knobs)


def _bordered(workload: Workload, knobs: Knobs) -> bool:
    return bool(workload.sizes["pad_h"] or workload.sizes["pad_w"])


def _checks_tiles(workload: Workload, knobs: Knobs) -> bool:
    """Checks cost most where every pixel of a tile has one between its multiply-adds."""
    return _bordered(workload, knobs) and int(knobs["tile_q"]) > 1


ROWS: Mapping[str, tuple[Knob, ...]] = {"algorithm": ("direct", "im2col")}
REORDER = FAST + " -fassociative-math -fno-signed-zeros -fno-trapping-math -fno-math-errno"
"""Not -ffast-math: g++ 12 links start-up code with it that flushes denormals in the whole process."""
TILED: Mapping[str, tuple[Knob, ...]] = {**ROWS, "flags": (FAST, REORDER)}

MOVES = (
    Move(
        name="threads",
        text="Spread the work over all cores with OpenMP: images and output channels are independent, so "
        "the speedup is the number of cores.",
        category=Category.PARALLELISM,
        gain=1.9,
        sets={"threads": True},
    ),
    Move(
        name="optimiser",
        text="Compile with -O3 -march=native, so that the compiler unrolls, vectorises and uses the widest"
        " registers and fused multiply-adds of this machine.",
        category=Category.COMPUTE,
        gain=1.2,
        needs={"algorithm": ("loops",), "flags": ("-O2",)},
        sets={"flags": FAST},
    ),
    Move(
        name="native vectors",
        text="Compile with -O3 -march=native: the vectors become this machine's widest registers, with fused "
        "multiply-adds, and the sums stay in them.",
        category=Category.COMPUTE,
        gain=6.0,
        needs={**ROWS, "flags": ("-O2",)},
        sets={"flags": FAST},
    ),
    Move(
        name="reordered sums",
        text="Add -fassociative-math and what it needs, so that the compiler may reorder the sums of the "
        "reduction and vectorise it.",
        category=Category.PRECISION,
        gain=1.05,
        needs={"flags": (FAST,)},
        sets={"flags": REORDER},
    ),
    Move(
        name="constant sizes",
        text="Make all sizes compile-time constants, so that loops have known trip counts, addresses fold "
        "into the instructions and small loops unroll.",
        category=Category.CONTROL_FLOW,
        gain=1.2,
        sets={"constants": True},
    ),
    Move(
        name="channels innermost",
        text="Repack the weights to [C][R][S][K] and let the innermost loop run over output channels: "
        "contiguous vector loads of weights times one broadcast pixel, in place of a scalar "
        "reduction.",
        category=Category.MEMORY,
        gain=8.0,
        needs={"algorithm": ("loops",)},
        sets={"algorithm": "direct"},
        varies={"tile_k": (2, 3, 1, 6), "tile_q": (1, 2, 4)},
    ),
    Move(
        name="register tile",
        text="Keep a tile of neighbouring output pixels by channel vectors in registers over the whole "
        "window: each weight vector is loaded once for all pixels of the tile, and enough independent"
        " sums are in flight to hide the latency of the multiply-adds.",
        category=Category.COMPUTE,
        gain=1.8,
        needs=TILED,
        varies={"tile_k": (3, 2, 6, 1), "tile_q": (8, 4, 6, 5, 11, 14, 28)},
    ),
    Move(
        name="zero border",
        text="Copy the needed part of the image once into a buffer with a border of zeros, so that the "
        "inner loops have no bounds checks.",
        category=Category.CONTROL_FLOW,
        gain=1.9,
        needs={**ROWS, "border": ("checks",)},
        applies=_checks_tiles,
        sets={"border": "zeros"},
    ),
    Move(
        name="im2col",
        text="Gather the windows of one output row into a small matrix in cache (implicit im2col) and "
        "reduce along it: one flat loop with contiguous loads replaces three nested ones.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"algorithm": ("direct",)},
        sets={"algorithm": "im2col"},
        varies={"tile_k": (3, 2, 6), "tile_q": (8, 4, 6, 5, 11)},
    ),
    Move(
        name="direct",
        text="Read the windows straight from the image in place of gathering them first: the overlap of "
        "neighbouring windows is already in the first-level cache.",
        category=Category.MEMORY,
        gain=1.05,
        needs={"algorithm": ("im2col",)},
        sets={"algorithm": "direct"},
    ),
    Move(
        name="bf16 dot products",
        text="Round pixels and weights to bfloat16 and multiply them in pairs with AVX512-BF16 dot "
        "products: twice the multiplies per instruction, summed in float32, which the problem allows.",
        category=Category.PRECISION,
        gain=1.3,
        needs={"algorithm": ("direct",), "dtype": ("float32",), "flags": TILED["flags"]},
        applies=_rounds_up,
        sets={"dtype": "bf16", "border": "zeros"},
        varies={"tile_q": (8, 4, 14, 11), "tile_k": (3, 6, 2, 1)},
    ),
    Move(
        name="bf16 im2col",
        text="Gather windows as bfloat16 and reduce them in pairs with AVX512-BF16 dot products, summed in"
        " float32: the flat reduction has no odd tap to pad in every window row.",
        category=Category.PRECISION,
        gain=1.25,
        needs={**TILED, "dtype": ("float32",)},
        applies=_bf16_allowed,
        sets={"dtype": "bf16", "algorithm": "im2col", "border": "zeros"},
        varies={"tile_q": (8, 4, 14, 11), "tile_k": (3, 6, 2, 1)},
    ),
    Move(
        name="fuse relu",
        text="Apply the ReLU where the convolution's sum is still in a register, which saves one pass over"
        " the whole output.",
        category=Category.MEMORY,
        gain=1.1,
        needs={"fuse": ("none",)},
        applies=_has_relu,
        sets={"fuse": "relu"},
    ),
    Move(
        name="fuse max-pool",
        text="Keep only the last few rows of the convolution in cache, take ReLU and maximum there and "
        "write pooled rows alone: the convolution's output never reaches memory.",
        category=Category.MEMORY,
        gain=1.4,
        needs={**ROWS, "fuse": ("none", "relu")},
        applies=_has_pool,
        sets={"fuse": "pool"},
    ),
    Move(
        name="block transpose",
        text="Turn rows from channels-last to the output's layout with square blocks transposed in vector "
        "registers, so that stores are whole vectors in place of scattered scalars.",
        category=Category.MEMORY,
        gain=1.05,
        needs={**TILED, "store": ("scalar",)},
        sets={"store": "vectors"},
    ),
    Move(
        name="row tasks",
        text="Cut the work into tasks of a few output rows, so that all cores stay busy to the end and a "
        "task's part of the image stays in cache.",
        category=Category.PARALLELISM,
        gain=1.03,
        needs={**ROWS, "threads": (True,)},
        varies={"rows": (8, 14, 4, 28), "schedule": ("dynamic", "static")},
    ),
    Move(
        name="prefetch",
        text="Prefetch the weights some taps ahead into the first-level cache, since they stream from the "
        "second level in every tile.",
        category=Category.LATENCY,
        gain=1.02,
        needs={**TILED, "prefetch": (0,)},
        varies={"prefetch": (4, 8, 16)},
    ),
    Move(
        name="unroll",
        text="Unroll the loop along the window's row, so that its counter and address arithmetic disappear"
        " between the multiply-adds.",
        category=Category.CONTROL_FLOW,
        gain=1.03,
        needs=TILED,
        varies={"unroll": (2, 4, 3, 11)},
    ),
    Move(
        name="huge pages",
        text="Ask for huge pages for the output before it is first written: its thousands of page faults "
        "become a handful.",
        category=Category.LATENCY,
        gain=1.1,
        needs={**ROWS, "pages": ("small",)},
        sets={"pages": "huge"},
    ),
)

NAIVE: Knobs = {
    "algorithm": "loops",
    "flags": "-O2",
    "threads": False,
    "constants": False,
    "tile_q": 1,
    "tile_k": 1,
    "border": "checks",
    "dtype": "float32",
    "fuse": "none",
    "store": "scalar",
    "rows": 0,
    "schedule": "static",
    "prefetch": 0,
    "unroll": 1,
    "pages": "small",
}


class Conv2d:
    """The family of convolution kernels."""

    op = "conv2d"
    language = "cpp"
    naive = NAIVE
    moves = MOVES

    def valid(self, workload: Workload, knobs: Knobs) -> bool:
        """Float32 only; a tile must fit into the registers and a row, bf16 needs zeros around the image."""
        if workload.dtype != "float32":
            return False
        if knobs["fuse"] == "pool" and not _has_pool(workload, knobs):
            return False
        if knobs["fuse"] == "relu" and not _has_relu(workload, knobs):
            return False
        if knobs["algorithm"] == "loops":
            return knobs["fuse"] != "pool" and knobs["dtype"] == "float32"
        tile_q, tile_k = int(knobs["tile_q"]), int(knobs["tile_k"])
        if (tile_q + 1) * tile_k + 1 > machine.registers() or tile_q > workload.sizes["Q"]:
            return False
        if knobs["dtype"] == "bf16":
            flat = knobs["algorithm"] == "im2col" or workload.sizes["dilation_w"] == 1
            return flat and knobs["border"] == "zeros" and "native" in str(knobs["flags"])
        return True

    def render(self, workload: Workload, knobs: Knobs) -> str:
        """The kernel with these knobs."""
        sizes = {name: size for name, size in workload.sizes.items() if name not in ("groups", "bias")}
        loops = knobs["algorithm"] == "loops"
        includes = (
            ["algorithm", "memory"] if loops else ["algorithm", "cstdint", "cstring", "memory", "vector"]
        )
        includes += ["immintrin.h"] if knobs["dtype"] == "bf16" else []
        includes += ["sys/mman.h"] if knobs["pages"] == "huge" and not loops else []
        pooled = "maxpool" in workload.epilogue
        plane = ("PP", "PQ") if pooled else ("P", "Q")
        shape = [workload.sizes[name] for name in ("N", "K", *plane)]
        return cpp_kernel(
            summary=_summary(workload, knobs),
            workload=workload,
            knobs=knobs,
            includes=includes,
            sizes=sizes,
            constants=bool(knobs["constants"]),
            source=_loops(workload, knobs) if loops else _rows(workload, knobs),
            flags=pieces.flags(knobs),
            shapes={"x": [workload.sizes[name] for name in "NCHW"]},
            weights=["weight", "bias"] if workload.sizes["bias"] else ["weight"],
            output=f"torch.empty({', '.join(map(str, shape))})",
        )


TEMPLATE = Conv2d()


def _summary(workload: Workload, knobs: Knobs) -> str:
    what = " + ".join(["conv2d", *workload.epilogue])
    if knobs["algorithm"] == "loops":
        return f"{what} in C++: the plain loops."
    how = f"{knobs['tile_q']} pixels x {knobs['tile_k']} channel vectors in registers, {knobs['dtype']}"
    return f"{what} in C++: {knobs['algorithm']}, {how}."


def _signature(workload: Workload) -> str:
    bias = ", const float* bias" if workload.sizes["bias"] else ""
    return f'extern "C" void run(const float* x, const float* weight{bias}, float* out, int threads)'


def _loops(workload: Workload, knobs: Knobs) -> str:
    """Seven nested loops, and one more pass over the output for each operation that is not fused."""
    separate = _separate(workload, knobs)
    start = "bias[k]" if workload.sizes["bias"] else "0.0f"
    result = "std::max(sum, 0.0f)" if knobs["fuse"] == "relu" else "sum"
    target = "conv" if "maxpool" in separate else "out"
    return f"""
{_passes(separate, knobs)}{_signature(workload)} {{
{_allocate(target)}{pieces.parallel_for(knobs, 2)}    for (int n = 0; n < N; ++n)
        for (int k = 0; k < K; ++k)
            for (int p = 0; p < P; ++p)
                for (int q = 0; q < Q; ++q) {{
                    float sum = {start};
                    for (int c = 0; c < C; ++c)
                        for (int r = 0; r < R; ++r)
                            for (int s = 0; s < S; ++s) {{
                                int h = p * stride_h + r * dilation_h - pad_h;
                                int w = q * stride_w + s * dilation_w - pad_w;
                                if (h >= 0 && h < H && w >= 0 && w < W)
                                    sum += x[((size_t(n) * C + c) * H + h) * W + w]
                                         * weight[((k * C + c) * R + r) * S + s];
                            }}
                    {target}[((size_t(n) * K + k) * P + p) * Q + q] = {result};
                }}
{_calls(separate, target)}}}
"""


def _separate(workload: Workload, knobs: Knobs) -> list[str]:
    """What of the epilogue is a pass of its own."""
    fused = {"none": (), "relu": ("relu",), "pool": ("relu", "maxpool")}[str(knobs["fuse"])]
    return [op for op in workload.epilogue if op not in fused]


def _allocate(target: str) -> str:
    if target == "out":
        return ""
    return """    std::unique_ptr<float[]> buffer(new float[size_t(N) * K * P * Q]);
    float* conv = buffer.get();
"""


def _calls(separate: list[str], target: str) -> str:
    calls = {"relu": f"    relu({target}, threads);\n", "maxpool": f"    maxpool({target}, out, threads);\n"}
    return "".join(calls[op] for op in separate)


def _passes(separate: list[str], knobs: Knobs) -> str:
    texts = {
        "relu": f"""
static void relu(float* data, int threads) {{
{pieces.parallel_for(knobs, 1)}    for (size_t i = 0; i < size_t(N) * K * P * Q; ++i)
        data[i] = std::max(data[i], 0.0f);
}}
""",
        "maxpool": f"""
static void maxpool(const float* data, float* out, int threads) {{
{pieces.parallel_for(knobs, 1)}    for (int plane = 0; plane < N * K; ++plane)
        for (int pp = 0; pp < PP; ++pp)
            for (int pq = 0; pq < PQ; ++pq) {{
                float best = -__builtin_inff();
                for (int i = 0; i < pool; ++i)
                    for (int j = 0; j < pool; ++j) {{
                        int p = pp * pool_stride + i - pool_pad, q = pq * pool_stride + j - pool_pad;
                        if (p >= 0 && p < P && q >= 0 && q < Q)
                            best = std::max(best, data[(size_t(plane) * P + p) * Q + q]);
                    }}
                out[(size_t(plane) * PP + pp) * PQ + pq] = best;
            }}
}}
""",
    }
    return "".join(texts[op].lstrip("\n") + "\n" for op in separate)


def _rows(workload: Workload, knobs: Knobs) -> str:
    """The algorithm by rows: tasks of output rows, each computed channels innermost."""
    separate = _separate(workload, knobs)
    target = "conv" if "maxpool" in separate else "out"
    pooled = knobs["fuse"] == "pool"
    height, width = ("PP", "PQ") if pooled else ("P", "Q")
    bias = "k < K ? bias[k] : 0.0f" if workload.sizes["bias"] else "0.0f"
    element = "uint16_t" if knobs["dtype"] == "bf16" else "float"
    store = "vectors" if knobs["store"] == "vectors" and workload.sizes[width] >= 16 else "scalar"
    pages = f"    huge_pages({target}, size_t(N) * K * {height} * {width} * sizeof(float));\n"
    huge = knobs["pages"] == "huge"
    parts = [
        f"""
{pieces.VEC}
typedef {element} element;  // of pixels and weights
constexpr int TILE_Q = {knobs["tile_q"]}, TILE_K = {knobs["tile_k"]}, BLOCK = TILE_K * LANES;

static inline int blocks() {{ return (K + BLOCK - 1) / BLOCK; }}
static inline int channels() {{ return blocks() * BLOCK; }}
""",
        pieces.BF16 if knobs["dtype"] == "bf16" else "",
        _pack(knobs),
        _border(workload, knobs),
        _gather(workload, knobs),
        _conv_row(workload, knobs),
        _STORES[store],
        _pool_row(workload) if pooled else "",
        _task(workload, knobs),
        pieces.HUGE_PAGES if huge else "",
        _passes(separate, knobs),
    ]
    return (
        "\n".join(part.strip("\n") + "\n" for part in parts if part)
        + f"""
{_signature(workload)} {{
{_allocate(target)}{pages if huge else ""}    std::vector<element> packed(packed_size());
    pack(weight, packed.data());
    std::vector<float> start(channels());
    for (int k = 0; k < channels(); ++k)
        start[k] = {bias};
{_step(workload, knobs, height)}
{pieces.parallel_for(knobs, 2)}    for (int n = 0; n < N; ++n)
        for (int first = 0; first < {height}; first += step)
            task(x + size_t(n) * C * H * W, packed.data(), start.data(),
                 {target} + size_t(n) * K * {height} * {width}, first, std::min(first + step, {height}));
{_calls(separate, target)}}}
"""
    )


def _step(workload: Workload, knobs: Knobs, height: str) -> str:
    """How many rows a task has; those of an image where the knob does not say it, or fewer where there are
    more threads than images."""
    if knobs["rows"]:
        return f"    const int step = {min(int(knobs['rows']), workload.sizes[height])};  // rows of a task"
    if not knobs["threads"]:
        return f"    const int step = {height};  // rows of a task"
    return f"""    const int parts = (threads + N - 1) / N;  // of an image, one a task
    const int step = ({height} + parts - 1) / parts;"""


def _checked(workload: Workload, knobs: Knobs) -> bool:
    """Whether the image has a border that only bounds checks know of."""
    return knobs["border"] == "checks" and _bordered(workload, knobs)


def _copied(workload: Workload, knobs: Knobs) -> bool:
    """Whether a task copies its part of the image: for the border, or to round it."""
    return knobs["border"] == "zeros" and (knobs["dtype"] == "bf16" or _bordered(workload, knobs))


def _pack(knobs: Knobs) -> str:
    """Weights with the channels of a block innermost; in bf16 also in pairs of neighbouring taps."""
    if knobs["dtype"] == "float32":
        return """
static inline size_t packed_size() { return size_t(channels()) * C * R * S; }

// Weights as [block of channels][c, r, s][channel of the block], zero beyond the last channel.
static void pack(const float* weight, float* to) {
    for (int block = 0; block < blocks(); ++block)
        for (int tap = 0; tap < C * R * S; ++tap)
            for (int i = 0; i < BLOCK; ++i) {
                int k = block * BLOCK + i;
                *to++ = k < K ? weight[size_t(k) * C * R * S + tap] : 0.0f;
            }
}
"""
    lines, length = ("1", "C * R * S") if knobs["algorithm"] == "im2col" else ("C * R", "S")
    return f"""
static inline int lines() {{ return {lines}; }}
static inline int length() {{ return {length}; }}
static inline int pairs() {{ return (length() + 1) / 2; }}
static inline size_t packed_size() {{ return size_t(channels()) * lines() * pairs() * 2; }}

// Weights as [block of channels][line of taps][pair of taps][channel of the block][2], zero beyond the ends.
static void pack(const float* weight, element* to) {{
    for (int block = 0; block < blocks(); ++block)
        for (int line = 0; line < lines(); ++line)
            for (int tap = 0; tap < 2 * pairs(); tap += 2)
                for (int i = 0; i < BLOCK; ++i)
                    for (int half = 0; half < 2; ++half) {{
                        int k = block * BLOCK + i;
                        bool inside = k < K && tap + half < length();
                        size_t at = (size_t(k) * lines() + line) * length() + tap + half;
                        *to++ = inside ? bf16(weight[at]) : 0;
                    }}
}}
"""


def _border(workload: Workload, knobs: Knobs) -> str:
    """The copy of a task's part of the image into a border of zeros."""
    if not _copied(workload, knobs):
        return ""
    copy = "std::copy_n(from, W, to + pad_w);"  # not a loop, which GCC 12 makes wrong for AVX-512 at small W
    if knobs["dtype"] == "bf16":
        copy = "std::transform(from, from + W, to + pad_w, bf16);"
    return f"""
static inline int pitch() {{ return W + 2 * pad_w + 1; }}

// `height` rows of the image from row `top` on, each in a border of zeros: to[C][height][pitch()].
static void border(const float* image, element* to, int top, int height) {{
    for (int c = 0; c < C; ++c)
        for (int h = top; h < top + height; ++h, to += pitch()) {{
            std::fill(to, to + pitch(), element(0));
            if (h < 0 || h >= H)
                continue;
            const float* from = image + (size_t(c) * H + h) * W;
            {copy}
        }}
}}
"""


def _gather(workload: Workload, knobs: Knobs) -> str:
    """Implicit im2col: the windows of one output row as a matrix."""
    if knobs["algorithm"] != "im2col":
        return ""
    bf16 = knobs["dtype"] == "bf16"
    depth = "(C * R * S + 1) / 2 * 2" if bf16 else "C * R * S"
    zero = "\n        to[depth() - 1] = 0;" if bf16 else ""
    if _checked(workload, knobs):
        body = """int h = top + r * dilation_h;
                for (int s = 0; s < S; ++s) {
                    int w = q * stride_w - pad_w + s * dilation_w;
                    bool inside = h >= 0 && h < H && w >= 0 && w < W;
                    to[(c * R + r) * S + s] = inside ? image[(size_t(c) * H + h) * W + w] : 0.0f;
                }"""
        arguments = "const float* image, int top"
    else:
        body = """const element* from = window + c * plane + r * dilation_h * line + q * stride_w;
                for (int s = 0; s < S; ++s)
                    to[(c * R + r) * S + s] = from[s * dilation_w];"""
        arguments = "const element* window, size_t plane, int line"
    return f"""
static inline int depth() {{ return {depth}; }}

// The windows of one output row, one after the other: to[Q][depth()].
static void gather({arguments}, element* to) {{
    for (int q = 0; q < Q; ++q, to += depth()) {{{zero}
        for (int c = 0; c < C; ++c)
            for (int r = 0; r < R; ++r) {{
                {body}
            }}
    }}
}}
"""


def _conv_row(workload: Workload, knobs: Knobs) -> str:
    """One output row: tiles of pixels by channels, each reduced over the whole window in registers."""
    bf16, flat = knobs["dtype"] == "bf16", knobs["algorithm"] == "im2col"
    checked = _checked(workload, knobs) and not flat
    taps = ("pairs()" if flat else "(S + 1) / 2") if bf16 else ("depth()" if flat else "S")
    place = "(q + i) * depth()" if flat else "(q + i) * stride_w"
    tap = "2 * s" if bf16 else ("s" if flat else "s * dilation_w")
    if bf16:
        pixel = f"__m512bh pixel = pair(line + {place} + {tap});"
        multiply = "sum[i][j] = dot(sum[i][j], pixel, w[j]);"
        load = "__m512bh w[TILE_K];"
        fetch = "w[j] = (__m512bh)_mm512_loadu_si512(weight + 2 * j * LANES);"
    elif checked:
        pixel = "int at = (q + i) * stride_w + s * dilation_w - pad_w;"
        pixel += "\n                            float pixel = at >= 0 && at < W ? line[at] : 0.0f;"
        multiply, load, fetch = (
            "sum[i][j] += pixel * w[j];",
            "vec w[TILE_K];",
            "w[j] = *(const vec*)(weight + j * LANES);",
        )
    else:
        pixel = f"float pixel = line[{place} + {tap}];"
        multiply, load, fetch = (
            "sum[i][j] += pixel * w[j];",
            "vec w[TILE_K];",
            "w[j] = *(const vec*)(weight + j * LANES);",
        )
    advance = "2 * BLOCK" if bf16 else "BLOCK"
    prefetch = int(knobs["prefetch"])
    ahead = ""
    if prefetch:
        width = "2 * LANES" if bf16 else "LANES"
        ahead = f"""
                        for (int j = 0; j < TILE_K; ++j)
                            __builtin_prefetch(weight + {prefetch} * {advance} + j * {width});"""
    unroll = f"                    #pragma GCC unroll {knobs['unroll']}\n" if int(knobs["unroll"]) > 1 else ""
    relu = knobs["fuse"] == "relu"
    result = "sum[i][j] > zero ? sum[i][j] : zero" if relu else "sum[i][j]"
    if flat:
        arguments, loops, line = "const element* windows", "", "const element* line = windows;"
    elif checked:
        arguments = "const float* image, int top"
        loops = "for (int c = 0; c < C; ++c)\n                for (int r = 0; r < R; ++r) "
        line = f"""int h = top + r * dilation_h;
                    if (h < 0 || h >= H) {{
                        weight += S * {advance};
                        continue;
                    }}
                    const float* line = image + (size_t(c) * H + h) * W;"""
    else:
        arguments = "const element* window, size_t plane, int pitch"
        loops = "for (int c = 0; c < C; ++c)\n                for (int r = 0; r < R; ++r) "
        line = "const element* line = window + c * plane + r * dilation_h * pitch;"
    return f"""
// One output row, channels innermost: row[Q][channels()].
static void conv_row({arguments}, const element* packed, const float* start, float* row) {{
    for (int block = 0; block < blocks(); ++block)
        for (int next = 0; next < Q; next += TILE_Q) {{
            const int q = std::min(next, Q - TILE_Q);  // the last tile overlaps the one before
            const element* weight = packed + packed_size() / blocks() * block;
            vec sum[TILE_Q][TILE_K];
            for (int i = 0; i < TILE_Q; ++i)
                for (int j = 0; j < TILE_K; ++j)
                    sum[i][j] = *(const vec*)(start + block * BLOCK + j * LANES);
            {loops}{{
                    {line}
{unroll}                    for (int s = 0; s < {taps}; ++s, weight += {advance}) {{{ahead}
                        {load}
                        for (int j = 0; j < TILE_K; ++j)
                            {fetch}
                        for (int i = 0; i < TILE_Q; ++i) {{
                            {pixel}
                            for (int j = 0; j < TILE_K; ++j)
                                {multiply}
                        }}
                    }}
                }}
{"            const vec zero = {};" + chr(10) if relu else ""}            for (int i = 0; i < TILE_Q; ++i)
                for (int j = 0; j < TILE_K; ++j)
                    *(vec*)(row + size_t(q + i) * channels() + block * BLOCK + j * LANES) = {result};
        }}
}}
"""


_STORES = {
    "scalar": """
// Writes a row from channels innermost to its place in each channel's plane.
static void store(const float* row, float* out, int width, size_t plane) {
    for (int k = 0; k < K; ++k)
        for (int q = 0; q < width; ++q)
            out[k * plane + q] = row[size_t(q) * channels() + k];
}
""",
    "vectors": pieces.TRANSPOSE
    + """
// Writes a row from channels innermost to its place in each channel's plane, in blocks of LANES x LANES.
static void store(const float* row, float* out, int width, size_t plane) {
    for (int k = 0; k < K; k += LANES)
        for (int next = 0; next < width; next += LANES) {
            const int q = std::min(next, width - LANES);  // the last block overlaps the one before
            vec block[LANES];
            for (int i = 0; i < LANES; ++i)
                block[i] = *(const vec*)(row + size_t(q + i) * channels() + k);
            transpose(block);
            for (int i = 0; i < LANES && k + i < K; ++i)
                *(vec*)(out + (k + i) * plane + q) = block[i];
        }
}
""",
}


def _pool_row(workload: Workload) -> str:
    """One pooled row out of the ring of convolution rows."""
    first = (
        "vec best = {};  // the ReLU"
        if "relu" in workload.epilogue
        else "vec best = vec{} - __builtin_inff();"
    )
    return f"""
// One pooled row, channels innermost, out of convolution rows [low, high), which lie in a ring.
static void pool_row(const float* ring, int low, int high, float* row) {{
    for (int pq = 0; pq < PQ; ++pq) {{
        const int left = std::max(pq * pool_stride - pool_pad, 0);
        const int right = std::min(pq * pool_stride - pool_pad + pool, Q);
        for (int k = 0; k < channels(); k += LANES) {{
            {first}
            for (int p = low; p < high; ++p)
                for (int q = left; q < right; ++q) {{
                    vec value = *(const vec*)(ring + (size_t(p % pool) * Q + q) * channels() + k);
                    best = value > best ? value : best;
                }}
            *(vec*)(row + size_t(pq) * channels() + k) = best;
        }}
    }}
}}
"""


def _task(workload: Workload, knobs: Knobs) -> str:
    """The rows of one task: its part of the image copied, its rows computed, pooled and stored."""
    flat, pooled = knobs["algorithm"] == "im2col", knobs["fuse"] == "pool"
    if pooled:
        low, high = (
            "std::max(first * pool_stride - pool_pad, 0)",
            "std::min((last - 1) * pool_stride - pool_pad + pool, P)",
        )
    else:
        low, high = "first", "last"
    lines = []
    if _copied(workload, knobs):
        lines += [
            f"const int low = {low}, high = {high};",
            "const int top = low * stride_h - pad_h;",
            "const int height = (high - 1 - low) * stride_h + (R - 1) * dilation_h + 1;",
            "static thread_local std::vector<element> part;",
            "part.resize(size_t(C) * height * pitch() + 1);",
            "border(image, part.data(), top, height);",
        ]
        source = "part.data() + size_t(p - low) * stride_h * pitch(), size_t(height) * pitch(), pitch()"
    elif _checked(workload, knobs):
        source = "image, p * stride_h - pad_h"
    else:
        source = "image + size_t(p) * stride_h * W, size_t(H) * W, W"
    if flat:
        lines += ["static thread_local std::vector<element> windows;", "windows.resize(size_t(Q) * depth());"]
    rows = "pool + 1" if pooled else "1"
    lines += [
        "static thread_local std::vector<float> rows;",
        f"rows.resize(size_t({rows}) * Q * channels());",
        "float* row = rows.data();",
    ]
    compute = [f"gather({source}, windows.data());"] if flat else []
    where = "row + size_t(1 + p % pool) * Q * channels()" if pooled else "row"
    compute.append(f"conv_row({'windows.data()' if flat else source}, packed, start, {where});")
    if pooled:
        body = ["int done = 0;", "for (int pp = first; pp < last; ++pp) {"]
        body += ["    const int above = std::max(pp * pool_stride - pool_pad, 0);"]
        body += ["    const int below = std::min(pp * pool_stride - pool_pad + pool, P);"]
        body += ["    for (int p = std::max(done, above); p < below; ++p) {"]
        body += [f"        {line}" for line in compute] + ["    }", "    done = below;"]
        body += ["    pool_row(row + size_t(Q) * channels(), above, below, row);"]
        body += ["    store(row, out + size_t(pp) * PQ, PQ, size_t(PP) * PQ);", "}"]
    else:
        body = ["for (int p = first; p < last; ++p) {", *(f"    {line}" for line in compute)]
        body += ["    store(row, out + size_t(p) * Q, Q, size_t(P) * Q);", "}"]
    text = "\n".join(f"    {line}" for line in [*lines, *body])
    return f"""
// Output rows [first, last) of one image.
static void task(const float* image, const element* packed, const float* start, float* out,
                 int first, int last) {{
{text}
}}
"""
