"""The implicit GEMM: output pixels by channels, summed over the taps of the window."""

from __future__ import annotations

from search.proposers.playbook.templates.triton.conv.plan import Code, Plan, decode, image
from search.proposers.playbook.templates.triton.conv.prepare import preparation
from search.proposers.playbook.templates.triton.pieces import (
    ceil_div,
    indent,
    join,
    larger,
    powers,
    wide,
)


def gemm(plan: Plan) -> Code:
    """The implicit GEMM and the kernels that prepare its operands."""
    prepare, before = preparation(plan)
    s = plan.sizes
    operands = [image(plan), "packed" if plan.packed else "weight"]
    operands += ["table"] if plan.table else []
    operands += ["bias"] if s["bias"] else []
    body = _resident_body(plan) if plan.resident else _streamed_body(plan)
    function = plan.kernel("convolve", [*operands, "out"], _gemm_doc(plan), body)
    columns = 1 if plan.exact else ceil_div(s["K"], plan.block_n)
    tiles = plan.constants["TILES"]
    grid = f"({tiles}, {columns})" if columns > 1 else f"({tiles},)"
    if plan.resident:
        grid = f"(min({tiles}, processors(x.device)),)"
    options = f"num_warps={plan.knobs['warps']}, num_stages={plan.knobs['stages']}"
    launch = f"convolve[{grid}]({', '.join(operands)}, {{out}}, {options})"
    return Code(functions=(*prepare, function), before=before, launch=launch)


def _gemm_doc(plan: Plan) -> str:
    channels = "all channels" if plan.exact else "BLOCK_N channels"
    if plan.resident:
        return f"One program: tiles of BLOCK_M output pixels times {channels}, weights kept."
    pixels = "pooled" if plan.fuse == "window" else "output"
    return f"One program: BLOCK_M {pixels} pixels times {channels}, BLOCK_K taps at a time."


def _position(plan: Plan, p: str, q: str) -> str:
    """Lines that set `corner`, pointers to the windows of output pixels (p, q) of images n."""
    s, name = plan.sizes, image(plan)
    if plan.depth:
        n = wide("n", s["N"] * plan.hd * plan.wd * plan.depth_elements)
        return f"corner = {name} + (({n} * HD + {p}) * WD + {q}) * E"
    if plan.input == "padded":
        n = wide("n", plan.padded_elements)
        return f"corner = {name} + ({n} * (C * HP) + {p} * STRIDE_H) * WP + {q} * STRIDE_W"
    n = wide("n", s["N"] * s["C"] * s["H"] * s["W"])
    return join(
        f"""
        top = {p} * STRIDE_H - PAD_H
        left = {q} * STRIDE_W - PAD_W
        corner = {name} + {n} * (C * H * W) + top * W + left
        """
    )


def _load_pixels(plan: Plan) -> str:
    """Lines that load `a`, the tile of windows, for taps `k`."""
    short = plan.taps_padded > plan.taps
    if plan.depth:
        return "a = tl.load(corner[:, None] + (k + k // SPAN * GAP)[None, :])"
    if plan.table:
        return "a = tl.load(corner[:, None] + tl.load(table + k)[None, :])"
    if plan.input == "padded":
        # Taps beyond the last meet weights of zero, and zeros lie behind the last image.
        offset = "offset = (c * HP + r * DILATION_H) * WP + s * DILATION_W"
        return join(decode(plan), offset, "a = tl.load(corner[:, None] + offset[None, :])")
    rounded = ".to(tl.float16)" if plan.half and plan.input == "plain" else ""
    beyond = " & (k < TAPS)[None, :]" if short else ""
    return join(
        decode(plan),
        f"""
        h = top[:, None] + (r * DILATION_H)[None, :]
        w = left[:, None] + (s * DILATION_W)[None, :]
        within = (h >= 0) & (h < H) & (w >= 0) & (w < W){beyond}
        offset = (c * H + r * DILATION_H) * W + s * DILATION_W
        a = tl.load(corner[:, None] + offset[None, :], mask=within, other=0.0){rounded}
        """,
    )


def _suffixes(plan: Plan) -> list[str]:
    """Names of a program's column pieces: one, or "0", "1" …"""
    return [""] if len(plan.pieces) == 1 else [str(place) for place in range(len(plan.pieces))]


def _channel(plan: Plan, place: int) -> str:
    start, width = plan.pieces[place]
    if plan.exact:
        return f"{start} + tl.arange(0, {width})" if start else f"tl.arange(0, {width})"
    return (
        "tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)"
        if plan.sizes["K"] > plan.block_n
        else "tl.arange(0, BLOCK_N)"
    )


def _channels(plan: Plan) -> str:
    names = [f"channel{suffix} = {_channel(plan, place)}" for place, suffix in enumerate(_suffixes(plan))]
    return "\n".join(names)


def _accumulate(plan: Plan) -> str:
    """Lines that sum the products of all taps into `total…`."""
    lines, dots = [], []
    exact = "" if plan.half else f', input_precision="{plan.precision}"'
    for place, suffix in enumerate(_suffixes(plan)):
        lines.append(f"total{suffix} = tl.zeros([BLOCK_M, {plan.pieces[place][1]}], tl.float32)")
        if plan.packed:
            dots.append(f"b{suffix} = tl.load(packed + k[:, None] * COLUMNS + channel{suffix}[None, :])")
        else:
            within = [("k", "TAPS", "[:, None]")] if plan.taps_padded > plan.taps else []
            within += [(f"channel{suffix}", "K", "[None, :]")] if plan.columns > plan.sizes["K"] else []
            mask = " & ".join(f"({name} < {limit}){axis}" for name, limit, axis in within)
            masked = f", mask={mask}, other=0.0" if mask else ""
            rounded = ".to(tl.float16)" if plan.half else ""
            spot = f"weight + channel{suffix}[None, :] * TAPS + k[:, None]"
            dots.append(f"b{suffix} = tl.load({spot}{masked}){rounded}")
        dots.append(f"total{suffix} = tl.dot(a, b{suffix}, total{suffix}{exact})")
    step = join("k = start + tl.arange(0, BLOCK_K)", _load_pixels(plan), *dots)
    return join(*lines, "for start in range(0, TAPS_PADDED, BLOCK_K):\n" + indent(step))


def _streamed_body(plan: Plan) -> str:
    """One tile per program; pixels and weights stream through shared memory."""
    pooled = plan.fuse == "window"
    plane = "PP * PQ" if pooled else "P * Q"
    where = _where(plan, "PQ" if pooled else "Q", plane)
    if not pooled:
        return join(
            "pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
            where,
            _position(plan, "p", "q"),
            _channels(plan),
            _accumulate(plan),
            _store(plan),
        )
    best = [
        f"best{suffix} = tl.full([BLOCK_M, {plan.pieces[place][1]}], float('-inf'), tl.float32)"
        for place, suffix in enumerate(_suffixes(plan))
    ]
    s = plan.sizes
    limits = s["pool_pad"] > 0
    row, column = ("p * POOL_STRIDE - POOL_PAD + i", "q * POOL_STRIDE - POOL_PAD + j")
    if not limits:
        row, column = ("p * POOL_STRIDE + i", "q * POOL_STRIDE + j")
    update = [
        f"best{suffix} = "
        + larger(
            f"best{suffix}",
            f"tl.where(within_image[:, None], total{suffix}, float('-inf'))" if limits else f"total{suffix}",
        )
        for suffix in _suffixes(plan)
    ]
    inner = join(
        f"conv_p, conv_q = {row}, {column}",
        """
        within_image = (conv_p >= 0) & (conv_p < P) & (conv_q >= 0) & (conv_q < Q)
        conv_p = tl.minimum(tl.maximum(conv_p, 0), P - 1)
        conv_q = tl.minimum(tl.maximum(conv_q, 0), Q - 1)
        """
        if limits
        else "",
        _position(plan, "conv_p", "conv_q"),
        _accumulate(plan),
        *update,
    )
    return join(
        "pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)",
        where,
        _channels(plan),
        *best,
        "for i in range(POOL):\n    for j in range(POOL):\n" + indent(inner, 2),
        _store(plan, "best"),
    )


def _where(plan: Plan, width: str, plane: str) -> str:
    """Lines that turn `pixel` into image n, row p and column q, clamped to the last pixel."""
    ragged = plan.constants["PIXELS"] % plan.block_m
    last = "last" if ragged else "pixel"
    height = plane.split(" * ")[0]
    return join(
        "last = tl.minimum(pixel, PIXELS - 1)" if ragged else "",
        f"n, p, q = {last} // ({plane}), {last} // {width} % {height}, {last} % {width}",
    )


def _store(plan: Plan, name: str = "total") -> str:
    """Lines that finish the accumulators and write them."""
    s = plan.sizes
    relu = plan.relu and plan.fuse in ("relu", "staged", "window")
    ragged = plan.constants["PIXELS"] % plan.block_m != 0
    lines = []
    pooled = plan.fuse == "window"
    plane = "PP * PQ" if pooled else "P * Q"
    area = s["PP"] * s["PQ"] if pooled else s["P"] * s["Q"]
    if plan.fuse == "staged":
        pixel = wide("pixel", plan.pixels * s["K"])
        spot = f"out + {pixel}[:, None] * K + channel{{0}}[None, :]"
    else:
        image = wide("n", s["N"] * s["K"] * area)
        row = "PQ" if pooled else "Q"
        lines.append(f"target = out + {image} * (K * {plane}) + p * {row} + q")
        spot = f"target[:, None] + channel{{0}}[None, :] * ({plane})"
    for place, suffix in enumerate(_suffixes(plan)):
        start, width = plan.pieces[place]
        over = (start + width if plan.exact else plan.columns) > s["K"]
        value = f"{name}{suffix}"
        if s["bias"]:
            masked = f", mask=channel{suffix} < K, other=0.0" if over else ""
            lines.append(f"{value} += tl.load(bias + channel{suffix}{masked})[None, :]")
        if relu:
            lines.append(f"{value} = {larger(value, '0.0')}")
        inside = ["(pixel < PIXELS)[:, None]"] if ragged else []
        inside += [f"(channel{suffix} < K)[None, :]"] if over else []
        mask = f", mask={' & '.join(inside)}" if inside else ""
        rounded = ".to(tl.float16)" if plan.fuse == "staged" else ""
        lines.append(f"tl.store({spot.format(suffix)}, {value}{rounded}{mask})")
    return "\n".join(lines)


def _resident_body(plan: Plan) -> str:
    """A persistent program: weights loaded once, tiles of pixels in a loop."""
    steps = powers(plan.taps_padded)
    loads, inner = [], []
    for number_, (start, length) in enumerate(steps):
        loads.append(f"k{number_} = {f'{start} + ' if start else ''}tl.arange(0, {length})")
        for suffix in _suffixes(plan):
            spot = f"packed + k{number_}[:, None] * COLUMNS + channel{suffix}[None, :]"
            loads.append(f"b{number_}_{suffix or 0} = tl.load({spot})")
    for number_ in range(len(steps)):
        offset = f"(k{number_} + k{number_} // SPAN * GAP)[None, :]"
        inner.append(f"a{number_} = tl.load(corner[:, None] + {offset})")
    for place, suffix in enumerate(_suffixes(plan)):
        inner.append(f"total{suffix} = tl.zeros([BLOCK_M, {plan.pieces[place][1]}], tl.float32)")
    for number_ in range(len(steps)):
        for suffix in _suffixes(plan):
            inner.append(f"total{suffix} = tl.dot(a{number_}, b{number_}_{suffix or 0}, total{suffix})")
    tile = join(
        "pixel = tile * BLOCK_M + tl.arange(0, BLOCK_M)",
        _where(plan, "Q", "P * Q"),
        _position(plan, "p", "q"),
        *inner,
        _store(plan),
    )
    loop = "for tile in range(tl.program_id(0), TILES, tl.num_programs(0)):\n" + indent(tile)
    return join(_channels(plan), *loads, loop)
