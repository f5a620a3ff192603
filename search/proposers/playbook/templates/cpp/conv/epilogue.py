"""ReLU and max-pool, as passes over the whole output or over one row."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.workload import Workload


def separate_passes(workload: Workload, knobs: Knobs) -> list[str]:
    """The operations of the epilogue that run as separate passes."""
    fused = {"none": (), "relu": ("relu",), "pool": ("relu", "maxpool")}[str(knobs["fuse"])]
    return [op for op in workload.epilogue if op not in fused]


def allocation(target: str) -> str:
    """The lines that allocate what the passes read; empty if that is the output."""
    if target == "out":
        return ""
    return """    std::unique_ptr<float[]> buffer(new float[size_t(N) * K * P * Q]);
    float* conv = buffer.get();
"""


def pass_calls(separate: list[str], target: str) -> str:
    """The calls of the passes' functions, in their order."""
    calls = {"relu": f"    relu({target}, threads);\n", "maxpool": f"    maxpool({target}, out, threads);\n"}
    return "".join(calls[op] for op in separate)


def pass_functions(separate: list[str], knobs: Knobs) -> str:
    """A function for each pass."""
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
                        if (p < 0 || p >= P || q < 0 || q >= Q)
                            continue;
                        float value = data[(size_t(plane) * P + p) * Q + q];
                        best = value > best || value != value ? value : best;  // a NaN stays
                    }}
                out[(size_t(plane) * PP + pp) * PQ + pq] = best;
            }}
}}
""",
    }
    return "".join(texts[op].lstrip("\n") + "\n" for op in separate)


def pool_row(workload: Workload) -> str:
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
                    best = (value > best) | (value != value) ? value : best;  // a NaN stays
                }}
            *(vec*)(row + size_t(pq) * channels() + k) = best;
        }}
    }}
}}
"""
