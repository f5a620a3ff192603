"""Memory layouts: packed weights, an image with a border, windows as a matrix."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.cpp.conv.plan import checks_bounds, copies_image
from search.proposers.playbook.workload import Workload


def pack(knobs: Knobs) -> str:
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


def border(workload: Workload, knobs: Knobs) -> str:
    """The copy of a task's part of the image into a border of zeros."""
    if not copies_image(workload, knobs):
        return ""
    copy = "std::copy_n(from, W, to + pad_w);"  # GCC 12 miscompiles a loop here for AVX-512 and small W
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


def gather(workload: Workload, knobs: Knobs) -> str:
    """Implicit im2col: the windows of one output row as a matrix."""
    if knobs["algorithm"] != "im2col":
        return ""
    bf16 = knobs["dtype"] == "bf16"
    depth = "(C * R * S + 1) / 2 * 2" if bf16 else "C * R * S"
    zero = "\n        to[depth() - 1] = 0;" if bf16 else ""
    if checks_bounds(workload, knobs):
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

// The windows of one output row: to[Q][depth()].
static void gather({arguments}, element* to) {{
    for (int q = 0; q < Q; ++q, to += depth()) {{{zero}
        for (int c = 0; c < C; ++c)
            for (int r = 0; r < R; ++r) {{
                {body}
            }}
    }}
}}
"""
