"""The direct convolution: sums over the window, tap by tap."""

from __future__ import annotations

from search.proposers.playbook.templates.triton.conv.plan import Code, Plan
from search.proposers.playbook.templates.triton.pieces import (
    ceil_div,
    join,
    larger,
    number,
    wide,
)


def direct(plan: Plan) -> Code:
    """One program: a block of output pixels of one image, one channel or a few; loops over the window."""
    s, several = plan.sizes, number(plan.knobs, "channels") > 1
    bias = ["bias"] if s["bias"] else []
    image = wide("n", s["N"] * s["C"] * s["H"] * s["W"])
    result = wide("n", s["N"] * s["K"] * s["P"] * s["Q"])
    masked = ", mask=k < K, other=0.0" if several and s["K"] % number(plan.knobs, "channels") else ""
    k = "tl.program_id(1)" + (" * CHANNELS + tl.arange(0, CHANNELS)" if several else "")
    total = "[BLOCK_M, CHANNELS]" if several else "[BLOCK_M]"
    product = "value[:, None] * factor[None, :]" if several else "value * factor"
    row, column = ("[:, None]", "[None, :]") if several else ("", "")
    stored = "inside[:, None] & (k < K)[None, :]" if masked else f"inside{row}"
    body = join(
        f"""
        pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
        k = {k}
        n = tl.program_id(2)
        inside = pixel < P * Q
        top = pixel // Q * STRIDE_H - PAD_H
        left = pixel % Q * STRIDE_W - PAD_W
        image = x + {image} * (C * H * W)
        total = tl.zeros({total}, tl.float32)
        for c in range(C):
            for r in range(R):
                for s in range(S):
                    h = top + r * DILATION_H
                    w = left + s * DILATION_W
                    within = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
                    value = tl.load(image + (c * H + h) * W + w, mask=within, other=0.0)
                    factor = tl.load(weight + ((k * C + c) * R + r) * S + s{masked})
                    total += {product}
        """,
        f"total += tl.load(bias + k{masked}){column}" if bias else "",
        f"total = {larger('total', '0.0')}" if plan.fuse == "relu" else "",
        f"""
        spot = out + {result} * (K * P * Q) + k{column} * (P * Q) + pixel{row}
        tl.store(spot, total, mask={stored})
        """,
    )
    doc = "One program: BLOCK_M output pixels of one image, one channel."
    if several:
        doc = "One program: BLOCK_M output pixels of one image, CHANNELS channels."
    function = plan.kernel("convolve", ["x", "weight", *bias, "out"], doc, body)
    grid = (
        ceil_div(s["P"] * s["Q"], plan.block_m),
        ceil_div(s["K"], number(plan.knobs, "channels")),
        s["N"],
    )
    launch = (
        f"convolve[{grid}](x, weight{', bias' if bias else ''}, {{out}}, num_warps={plan.knobs['warps']})"
    )
    return Code(functions=(function,), before="", launch=launch)
