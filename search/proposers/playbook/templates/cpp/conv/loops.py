"""The plain loops."""

from __future__ import annotations

from search.proposers.playbook.move import Knobs
from search.proposers.playbook.templates.cpp import pieces
from search.proposers.playbook.templates.cpp.conv.epilogue import (
    allocation,
    pass_calls,
    pass_functions,
    separate_passes,
)
from search.proposers.playbook.templates.cpp.conv.plan import signature
from search.proposers.playbook.workload import Workload


def plain_loops(workload: Workload, knobs: Knobs) -> str:
    """Seven nested loops, and one more pass over the output for each operation that is not fused."""
    separate = separate_passes(workload, knobs)
    start = "bias[k]" if workload.sizes["bias"] else "0.0f"
    result = "std::max(sum, 0.0f)" if knobs["fuse"] == "relu" else "sum"
    target = "conv" if "maxpool" in separate else "out"
    return f"""
{pass_functions(separate, knobs)}{signature(workload)} {{
{allocation(target)}{pieces.parallel_for(knobs, 2)}    for (int n = 0; n < N; ++n)
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
{pass_calls(separate, target)}}}
"""
