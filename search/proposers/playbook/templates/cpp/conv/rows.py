"""The fast algorithm: one output row at a time, channels innermost."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.templates.cpp.conv.epilogue import (
    allocation,
    pass_calls,
    pass_functions,
    pool_row,
    separate_passes,
)
from search.proposers.playbook.templates.cpp.conv.layout import border, gather, pack
from search.proposers.playbook.templates.cpp.conv.plan import checks_bounds, copies_image, signature
from search.proposers.playbook.workload import Workload


def row_by_row(workload: Workload, knobs: Knobs) -> str:
    """The fast algorithm: tasks of output rows, each computed with channels innermost."""
    separate = separate_passes(workload, knobs)
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
        pack(knobs),
        border(workload, knobs),
        gather(workload, knobs),
        _conv_row(workload, knobs),
        _STORES[store],
        pool_row(workload) if pooled else "",
        _task(workload, knobs),
        pieces.HUGE_PAGES if huge else "",
        pass_functions(separate, knobs),
    ]
    return (
        "\n".join(part.strip("\n") + "\n" for part in parts if part)
        + f"""
{signature(workload)} {{
{allocation(target)}{pages if huge else ""}    std::vector<element> packed(packed_size());
    pack(weight, packed.data());
    std::vector<float> start(channels());
    for (int k = 0; k < channels(); ++k)
        start[k] = {bias};
{_step(workload, knobs, height)}
{pieces.parallel_for(knobs, 2)}    for (int n = 0; n < N; ++n)
        for (int first = 0; first < {height}; first += step)
            task(x + size_t(n) * C * H * W, packed.data(), start.data(),
                 {target} + size_t(n) * K * {height} * {width}, first, std::min(first + step, {height}));
{pass_calls(separate, target)}}}
"""
    )


def _step(workload: Workload, knobs: Knobs, height: str) -> str:
    """The line that sets the number of rows of a task. Without the knob it is a whole image, or less if there
    are more threads than images."""
    if knobs["rows"]:
        return f"    const int step = {min(int(knobs['rows']), workload.sizes[height])};  // rows of a task"
    if not knobs["threads"]:
        return f"    const int step = {height};  // rows of a task"
    return f"""    const int parts = (threads + N - 1) / N;  // of an image, one a task
    const int step = ({height} + parts - 1) / parts;"""


def _conv_row(workload: Workload, knobs: Knobs) -> str:
    """One output row: tiles of pixels by channels, each reduced over the whole window in registers."""
    flat = knobs["algorithm"] == "im2col"
    checked = checks_bounds(workload, knobs) and not flat
    relu = knobs["fuse"] == "relu"
    result = "sum[i][j] < zero ? zero : sum[i][j]" if relu else "sum[i][j]"
    arguments, loops, line = _line(knobs, flat=flat, checked=checked)
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
{_taps(knobs, flat=flat, checked=checked)}                }}
{"            const vec zero = {};" + chr(10) if relu else ""}            for (int i = 0; i < TILE_Q; ++i)
                for (int j = 0; j < TILE_K; ++j)
                    *(vec*)(row + size_t(q + i) * channels() + block * BLOCK + j * LANES) = {result};
        }}
}}
"""


def _line(knobs: Knobs, *, flat: bool, checked: bool) -> tuple[str, str, str]:
    """The arguments that locate the pixels, the loops over lines of taps, and the start of a line."""
    if flat:
        return "const element* windows", "", "const element* line = windows;"
    loops = "for (int c = 0; c < C; ++c)\n                for (int r = 0; r < R; ++r) "
    if not checked:
        line = "const element* line = window + c * plane + r * dilation_h * pitch;"
        return "const element* window, size_t plane, int pitch", loops, line
    line = f"""int h = top + r * dilation_h;
                    if (h < 0 || h >= H) {{
                        weight += S * {_advance(knobs)};
                        continue;
                    }}
                    const float* line = image + (size_t(c) * H + h) * W;"""
    return "const float* image, int top", loops, line


def _advance(knobs: Knobs) -> str:
    """The distance from the weights of one tap (bf16: two taps) to the next."""
    return "2 * BLOCK" if knobs["dtype"] == "bf16" else "BLOCK"


def _taps(knobs: Knobs, *, flat: bool, checked: bool) -> str:
    """The loop over the taps of a line: multiply-adds of all pixels and channels of the tile."""
    bf16 = knobs["dtype"] == "bf16"
    taps = ("pairs()" if flat else "(S + 1) / 2") if bf16 else ("depth()" if flat else "S")
    place = "(q + i) * depth()" if flat else "(q + i) * stride_w"
    tap = "2 * s" if bf16 else ("s" if flat else "s * dilation_w")
    vector, width = ("__m512bh", "2 * LANES") if bf16 else ("vec", "LANES")
    fetch = "w[j] = *(const vec*)(weight + j * LANES);"
    multiply = "sum[i][j] += pixel * w[j];"
    if bf16:
        pixel = f"__m512bh pixel = pair(line + {place} + {tap});"
        fetch = "w[j] = (__m512bh)_mm512_loadu_si512(weight + 2 * j * LANES);"
        multiply = "sum[i][j] = dot(sum[i][j], pixel, w[j]);"
    elif checked:
        pixel = "int at = (q + i) * stride_w + s * dilation_w - pad_w;"
        pixel += "\n                            float pixel = at >= 0 && at < W ? line[at] : 0.0f;"
    else:
        pixel = f"float pixel = line[{place} + {tap}];"
    unroll = f"                    #pragma GCC unroll {knobs['unroll']}\n" if int(knobs["unroll"]) > 1 else ""
    ahead, advance = "", _advance(knobs)
    if prefetch := int(knobs["prefetch"]):
        ahead = f"""
                        for (int j = 0; j < TILE_K; ++j)
                            __builtin_prefetch(weight + {prefetch} * {advance} + j * {width});"""
    return f"""{unroll}                    for (int s = 0; s < {taps}; ++s, weight += {advance}) {{{ahead}
                        {vector} w[TILE_K];
                        for (int j = 0; j < TILE_K; ++j)
                            {fetch}
                        for (int i = 0; i < TILE_Q; ++i) {{
                            {pixel}
                            for (int j = 0; j < TILE_K; ++j)
                                {multiply}
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
    if copies_image(workload, knobs):
        lines += [
            f"const int low = {low}, high = {high};",
            "const int top = low * stride_h - pad_h;",
            "const int height = (high - 1 - low) * stride_h + (R - 1) * dilation_h + 1;",
            "static thread_local std::vector<element> part;",
            "part.resize(size_t(C) * height * pitch() + 1);",
            "border(image, part.data(), top, height);",
        ]
        source = "part.data() + size_t(p - low) * stride_h * pitch(), size_t(height) * pitch(), pitch()"
    elif checks_bounds(workload, knobs):
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
