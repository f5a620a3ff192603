"""ReLU and max-pool as separate kernels, and the body of `forward`."""

from __future__ import annotations

from search.proposers.playbook.templates.triton.conv.plan import Code, Plan
from search.proposers.playbook.templates.triton.pieces import (
    INT32_LIMIT,
    ceil_div,
    indent,
    join,
    larger,
    power_of_two,
    wide,
)

POINTWISE_BLOCK = 1024
POOL_CHANNELS = 32


def _separate(plan: Plan) -> list[str]:
    """The operations of the epilogue that run as separate kernels."""
    if plan.fuse == "window":
        return []
    fused = ("relu",) if plan.fuse in ("relu", "staged") else ()
    return [op for op in plan.workload.epilogue if op not in fused]


def separate_functions(plan: Plan) -> list[str]:
    """The kernels of separate operations."""
    functions = []
    for op in _separate(plan):
        if op == "relu":
            functions.append(_relu(plan))
        else:
            functions.append(_pool_staged(plan) if plan.fuse == "staged" else _pool(plan))
    return functions


def _relu(plan: Plan) -> str:
    count = _relu_elements(plan)
    start = "tl.program_id(0)" + (".to(tl.int64)" if count >= INT32_LIMIT else "")
    body = join(
        f"""
        place = {start} * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(values + place, mask=place < {count})
        tl.store(values + place, {larger("value", "0.0")}, mask=place < {count})
        """
    )
    return plan.kernel("relu", ["values"], "In place.", body, BLOCK=POINTWISE_BLOCK)


def _relu_elements(plan: Plan) -> int:
    """The elements that the ReLU reads: it may follow the pool."""
    s = plan.sizes
    after = plan.pooled and plan.workload.epilogue.index("relu") > plan.workload.epilogue.index("maxpool")
    return s["N"] * s["K"] * (s["PP"] * s["PQ"] if after else s["P"] * s["Q"])


def _pool(plan: Plan) -> str:
    s = plan.sizes
    large = s["N"] * s["K"] * s["P"] * s["Q"] >= INT32_LIMIT
    start = "tl.program_id(0)" + (".to(tl.int64)" if large else "")
    body = join(
        f"""
        place = {start} * BLOCK + tl.arange(0, BLOCK)
        plane = place // (PP * PQ)
        top = place // PQ % PP * POOL_STRIDE - POOL_PAD
        left = place % PQ * POOL_STRIDE - POOL_PAD
        best = tl.full([BLOCK], float("-inf"), tl.float32)
        for i in range(POOL):
            for j in range(POOL):
                p, q = top + i, left + j
                within = (plane < N * K) & (p >= 0) & (p < P) & (q >= 0) & (q < Q)
                value = tl.load(values + (plane * P + p) * Q + q, mask=within, other=float("-inf"))
                best = {larger("best", "value")}
        tl.store(out + place, best, mask=plane < N * K)
        """
    )
    return plan.kernel(
        "pool", ["values", "out"], "One program: BLOCK pooled pixels.", body, BLOCK=POINTWISE_BLOCK
    )


def _pool_staged(plan: Plan) -> str:
    """From float16 with channels innermost to float32 with pixels innermost."""
    s = plan.sizes
    n = wide("n", plan.pixels * s["K"])
    padded = s["pool_pad"] > 0
    minus = " - POOL_PAD" if padded else ""
    window = [f"p, q = row % PP * POOL_STRIDE{minus} + i, column * POOL_STRIDE{minus} + j"]
    inside = "within"
    if padded:
        window.append("inside = within & ((p >= 0) & (p < P) & (q >= 0) & (q < Q))[:, None]")
        inside = "inside"
    window += [
        f"spot = values + (({n} * P + p) * Q + q)[:, None] * K + channel[None, :]",
        f"value = tl.load(spot, mask={inside}, other=float('-inf'))",
        f"best = {larger('best', 'value')}",
    ]
    loops = "for i in tl.static_range(POOL):\n    for j in tl.static_range(POOL):\n"
    body = join(
        """
        row = tl.program_id(0)
        n = row // PP
        column = tl.arange(0, COLS)
        channel = tl.program_id(1) * CHANNELS_EACH + tl.arange(0, CHANNELS_EACH)
        within = (column < PQ)[:, None] & (channel < K)[None, :]
        best = tl.full([COLS, CHANNELS_EACH], float("-inf"), tl.float16)
        """,
        loops + indent("\n".join(window), 2),
        f"""
        target = out + {wide("n", s["N"] * s["K"] * s["PP"] * s["PQ"])} * (K * PP * PQ) + row % PP * PQ
        spot = target + channel[None, :] * (PP * PQ) + column[:, None]
        tl.store(spot, best.to(tl.float32), mask=within)
        """,
    )
    more = {"COLS": power_of_two(s["PQ"]), "CHANNELS_EACH": POOL_CHANNELS}
    doc = "One program: a row of pooled pixels, CHANNELS_EACH channels, which become the outer index."
    return plan.kernel("pool", ["values", "out"], doc, body, **more)


def forward(plan: Plan, code: Code) -> str:
    """The body of `forward`."""
    s, path = plan.sizes, plan.workload.module
    shape = ("N", "K", "PP", "PQ") if plan.pooled else ("N", "K", "P", "Q")
    sizes = ", ".join(str(s[name]) for name in shape)
    separate = _separate(plan)
    lines = ["x = x.contiguous()", f"weight = self.{path}.weight.contiguous()"]
    lines += [f"bias = self.{path}.bias"] if s["bias"] else []
    lines.append(f"out = torch.empty(({sizes}), dtype=x.dtype, device=x.device)")
    values = "out"
    if "maxpool" in separate:
        values = "values"
        dtype = "torch.float16" if plan.fuse == "staged" else "x.dtype"
        lines.append(f"values = torch.empty({plan.pixels * s['K']}, dtype={dtype}, device=x.device)")
    lines += [code.before] if code.before else []
    lines.append(code.launch.format(out=values))
    for op in separate:
        if op == "relu":
            lines.append(f"relu[({ceil_div(_relu_elements(plan), POINTWISE_BLOCK)},)]({values})")
        else:
            pooled = s["N"] * s["K"] * s["PP"] * s["PQ"]
            grid = f"({ceil_div(pooled, POINTWISE_BLOCK)},)"
            if plan.fuse == "staged":
                grid = f"({s['N'] * s['PP']}, {ceil_div(s['K'], POOL_CHANNELS)})"
            lines.append(f"pool[{grid}](values, out)")
            values = "out"
    return "\n".join([*lines, "return out"])
