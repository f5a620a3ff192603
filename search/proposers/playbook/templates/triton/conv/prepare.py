"""Kernels that run before the GEMM: they pack the weights and copy the input."""

from __future__ import annotations

from search.proposers.playbook.templates.triton.conv.plan import Plan, decode, image
from search.proposers.playbook.templates.triton.pieces import (
    INT32_LIMIT,
    ceil_div,
    join,
    power_of_two,
    wide,
)

PACK_BLOCK = 1024
COPY_BLOCK = 2048
FOLD_ELEMENTS = 8192
"""The most elements that one program moves."""


def preparation(plan: Plan) -> tuple[list[str], str]:
    """Kernels that pack the weights and copy the input, and the lines of `forward` that run them."""
    jobs = []
    functions = []
    buffers = []
    device = f"dtype=torch.{plan.dtype}, device=x.device"
    if plan.packed:
        functions.append(_pack(plan))
        outs = ["packed"]
        buffers.append(f"packed = torch.empty({plan.taps_padded * plan.columns}, {device})")
        if plan.table:
            outs.append("table")
            buffers.append(f"table = torch.empty({plan.taps_padded}, dtype=torch.int32, device=x.device)")
        jobs.append(("pack", ["weight", *outs], ceil_div(plan.taps_padded * plan.columns, PACK_BLOCK)))
    if plan.input in ("half", "padded"):
        elements = plan.padded_elements
        if plan.input == "half":
            elements = plan.sizes["N"] * plan.sizes["C"] * plan.sizes["H"] * plan.sizes["W"]
        functions.append(_copy(plan, elements))
        buffers.append(f"{image(plan)} = torch.empty({elements}, {device})")
        jobs.append(("copy", ["x", image(plan)], ceil_div(elements, COPY_BLOCK)))
    elif plan.depth:
        fold, programs = _fold(plan)
        functions.append(fold)
        elements = (plan.sizes["N"] * plan.hd + plan.tail_rows) * plan.wd * plan.depth_elements
        buffers.append(f"folded = torch.empty({elements}, {device})")
        jobs.append(("fold", ["x", "folded"], programs))
    if plan.knobs["launches"] == "merged":
        functions = [_as_part(function) for function in functions]
        (first, first_arguments, first_jobs), (second, second_arguments, second_jobs) = jobs
        body = join(
            f"""
            job = tl.program_id(0)
            if job < WEIGHT_JOBS:
                {first}(job, {", ".join(first_arguments)})
            else:
                {second}(job - WEIGHT_JOBS, {", ".join(second_arguments)})
            """
        )
        arguments = [*first_arguments, *second_arguments]
        doc = "The first programs pack the weights, the others copy the input."
        functions.append(plan.kernel("prepare", arguments, doc, body, WEIGHT_JOBS=first_jobs))
        launches = [f"prepare[({first_jobs + second_jobs},)]({', '.join(arguments)})"]
    else:
        launches = [f"{name}[({programs},)]({', '.join(arguments)})" for name, arguments, programs in jobs]
    return functions, "\n".join([*buffers, *launches])


def _as_part(function: str) -> str:
    """A kernel as a part of a merged one: the argument `job` replaces the program's number."""
    return function.replace("tl.program_id(0)", "job").replace("(", "(job, ", 1)


def _pack(plan: Plan) -> str:
    """Weights [K][C][R][S] to [taps][columns], zeros around."""
    s = plan.sizes
    if plan.depth:
        position = """
        r = k // SPAN * STRIDE_H + k % E // STRIDE_W % STRIDE_H
        s = k % SPAN // E * STRIDE_W + k % STRIDE_W
        c = k % E // (STRIDE_H * STRIDE_W)
        """
        used = "(channel < K) & (k < TAPS) & (c < C) & (r < R) & (s < S)"
    else:
        position = decode(plan)
        used = "(channel < K) & (k < TAPS)" + (" & (s < S)" if plan.rows else "")
    table = ""
    if plan.table:
        table = join(
            """
            offset = (c * HP + r * DILATION_H) * WP + s * DILATION_W
            tl.store(table + k, tl.where(k < TAPS, offset, 0), mask=(channel == 0) & (k < TAPS_PADDED))
            """
        )
    body = join(
        "place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)",
        "k, channel = place // COLUMNS, place % COLUMNS",
        position,
        f"""
        used = {used}
        value = tl.load(weight + ((channel * C + c) * R + r) * S + s, mask=used, other=0.0)
        tl.store(packed + place, value, mask=k < TAPS_PADDED)
        """,
        table,
    )
    arguments = ["weight", "packed", *(["table"] if plan.table else [])]
    doc = "Weights to [taps][channels] with zeros around"
    doc += ", and the offset of each tap into a table." if plan.table else "."
    assert s["K"] * s["C"] * s["R"] * s["S"] < INT32_LIMIT
    return plan.kernel("pack", arguments, doc, body, BLOCK=PACK_BLOCK)


def _copy(plan: Plan, elements: int) -> str:
    """The input in the operands' dtype, with a border of zeros if it is padded."""
    start = "tl.program_id(0)" + (".to(tl.int64)" if elements >= INT32_LIMIT else "")
    place = f"place = {start} * BLOCK + tl.arange(0, BLOCK)"
    if plan.input == "half":
        body = join(
            place,
            f"""
            value = tl.load(x + place, mask=place < {elements})
            tl.store(half + place, value.to(tl.float16), mask=place < {elements})
            """,
        )
        return plan.kernel("copy", ["x", "half"], "The input in float16.", body, BLOCK=COPY_BLOCK)
    body = join(
        place,
        f"""
        plane, h, w = place // (HP * WP), place // WP % HP - PAD_H, place % WP - PAD_W
        within = (plane < N * C) & (h >= 0) & (h < H) & (w >= 0) & (w < W)
        value = tl.load(x + (plane * H + h) * W + w, mask=within, other=0.0)
        tl.store(padded + place, value, mask=place < {elements})
        """,
    )
    return plan.kernel("copy", ["x", "padded"], "The input with a border of zeros.", body, BLOCK=COPY_BLOCK)


def _fold(plan: Plan) -> tuple[str, int]:
    """The kernel that writes the input as [N][HD][WD][channel, row and column in stride] in float16, and its
    number of programs. One program folds one row of pixels, or a part of a long one."""
    s = plan.sizes
    cols, stride = power_of_two(plan.wd), s["stride_w"]
    lines = power_of_two(ceil_div(plan.depth_elements, stride))
    lines = min(lines, max(1, FOLD_ELEMENTS // power_of_two(cols * stride)))
    regular = power_of_two(stride) == stride
    width = lines * stride if regular else power_of_two(lines * stride)
    groups = ceil_div(plan.depth_elements, width)
    rows = s["N"] * plan.hd + plan.tail_rows
    row = "tl.program_id(0) // GROUPS" if groups > 1 else "tl.program_id(0)"
    first = "tl.program_id(0) % GROUPS" if groups > 1 else ""
    image = wide("n", s["N"] * s["C"] * s["H"] * s["W"])
    start = f"{first} * WIDTH + " if first else ""
    body = join(
        f"""
        row = {row}
        n = row // HD
        column = tl.arange(0, COLS)
        element = {start}tl.arange(0, WIDTH)
        """,
        _fold_whole_lines(image, f"{first} * LINES + " if first else "")
        if regular
        else _fold_by_element(image),
        f"""
        target = folded + {wide("row", rows * plan.wd * plan.depth_elements)} * (WD * E)
        spot = target + column[:, None] * E + element[None, :]
        tl.store(spot, value, mask=(column < WD)[:, None] & (element < E)[None, :])
        """,
    )
    doc = "One program: a row of folded pixels, STRIDE_H rows of the input, channels interleaved."
    more = {"LINES": lines, "COLS": cols, "WIDTH": width, "GROUPS": groups}
    return plan.kernel("fold", ["x", "folded"], doc, body, **more), rows * groups


def _fold_whole_lines(image: str, start: str) -> str:
    """Lines that set `value` where the stride is a power of two: contiguous loads, transposed on chip."""
    return join(
        f"""
        line = {start}tl.arange(0, LINES)
        c = line // STRIDE_H
        h = row % HD * STRIDE_H + line % STRIDE_H - PAD_H
        w = tl.arange(0, COLS * STRIDE_W) - PAD_W
        within = ((n < N) & (c < C) & (h >= 0) & (h < H))[:, None] & ((w >= 0) & (w < W))[None, :]
        source = x + {image} * (C * H * W) + (c * H + h) * W
        value = tl.load(source[:, None] + w[None, :], mask=within, other=0.0).to(tl.float16)
        value = value.reshape(LINES, COLS, STRIDE_W).permute(1, 0, 2).reshape(COLS, WIDTH)
        """
    )


def _fold_by_element(image: str) -> str:
    """Lines that set `value` for any stride, element by element."""
    return join(
        f"""
        c = element // (STRIDE_H * STRIDE_W)
        h = row % HD * STRIDE_H + element // STRIDE_W % STRIDE_H - PAD_H
        w = column[:, None] * STRIDE_W + (element % STRIDE_W)[None, :] - PAD_W
        within = ((n < N) & (c < C) & (h >= 0) & (h < H))[None, :] & (w >= 0) & (w < W)
        source = x + {image} * (C * H * W) + (c * H + h) * W
        value = tl.load(source[None, :] + w, mask=within, other=0.0).to(tl.float16)
        """
    )
