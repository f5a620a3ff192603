"""Wrong matrix products of float32 on a GPU."""

from benchmarks.mutations import ASIDE, Edit

TRITON = [
    Edit("term", "The second terms of b are left out.", "part = tl.dot(a0, b1, part)\n", "part += 0.0\n"),
    Edit(
        "term",
        "The second terms of a are left out.",
        "part = tl.dot(a1, b0)\n",
        "part = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)\n",
    ),
    Edit(
        "precision",
        "Sums of a step are rounded to bfloat16.",
        "total += part\n",
        "total += part.to(tl.bfloat16)\n",
    ),
    Edit(
        "part",
        "The last step of the depth is left out.",
        "for start in range(0, K, BLOCK_K):",
        "for start in range(BLOCK_K, K, BLOCK_K):",
    ),
    Edit(
        "edge",
        "The last block's largest value is what the memory holds.",
        "find_peaks[(peaks_a + peaks_b,)]",
        "find_peaks[(peaks_a + peaks_b - 1,)]",
    ),
    Edit(
        "range",
        "Operands are not scaled up: small ones lose their second terms.",
        "biased = tl.minimum(268 - exponent, 253)",
        "biased = tl.minimum(268 - exponent, 127)",
    ),
    Edit(
        "stride",
        "The second terms of a are those of the element before.",
        "tl.load(left), tl.load(left + M * K)\n",
        "tl.load(left), tl.load(left + (M * K - 1))\n",
    ),
    Edit("tail", "The last row is not written.", "mask=(row < M)[:, None]", "mask=(row < M - 1)[:, None]"),
    Edit(
        "range",
        "Both operands are taken to have the same scale.",
        "total = total * lower * tl.maximum(tl.load(scales), tl.load(scales + 1))",
        "total = total * lower * lower",
    ),
    Edit(
        "stale",
        "Nobody waits for the terms: they may be those of the call before.",
        "    split[(jobs,)](",
        ASIDE + "split[(jobs,)](",
    ),
    Edit(
        "mask",
        "The largest of each thread's values, signs included: what is most negative is not seen.",
        "size = tl.abs(tl.load(values + place, mask=place < ELEMENTS, other=0.0))",
        "size = tl.load(values + place, mask=place < ELEMENTS, other=0.0)",
    ),
]

GLUON = [
    Edit(
        "term",
        "The second terms of b are left out.",
        "part = warpgroup_mma(a0, b1, part, is_async=True)\n",
        "part = part\n",
    ),
    Edit(
        "term",
        "The second terms of a meet those of b.",
        "part = warpgroup_mma(a1, b0, nothing,",
        "part = warpgroup_mma(a1, b1, nothing,",
    ),
    Edit(
        "range",
        "Both operands are taken to have the same scale.",
        "total * lower * higher)",
        "total * lower * lower)",
    ),
    Edit(
        "precision",
        "Sums of a step are rounded to bfloat16.",
        "total += part\n",
        "total += part.to(gl.bfloat16).to(gl.float32)\n",
    ),
    Edit(
        "range",
        "Operands are not scaled up: small ones lose their second terms.",
        "biased = tl.minimum(268 - exponent, 253)",
        "biased = tl.minimum(268 - exponent, 127)",
    ),
    Edit(
        "stride",
        "The second terms of b are other rows' first ones.",
        "place = [start + term * K, column]",
        "place = [start + term, column]",
    ),
    Edit(
        "edge",
        "The last block's largest value is what the memory holds.",
        "find_peaks[(peaks_a + peaks_b,)]",
        "find_peaks[(peaks_a + peaks_b - 1,)]",
    ),
    Edit(
        "tail",
        "The last columns are not written.",
        "rows, columns = m // (2 * HALF), n // WIDTH",
        "rows, columns = m // (2 * HALF), n // WIDTH - 1",
    ),
    Edit(
        "stale",
        "Nobody waits for the terms: they may be those of the call before.",
        "    split[(jobs,)](",
        ASIDE + "split[(jobs,)](",
    ),
    Edit(
        "part",
        "The first step of the depth is counted by half.",
        "total = gl.zeros([HALF, WIDTH], gl.float32, layout)\n        for _ in range(0, K, DEPTH):",
        "total = gl.zeros([HALF, WIDTH], gl.float32, layout)\n        for turn in range(0, K, DEPTH):\n"
        "            total = gl.where(turn == DEPTH, total * 0.5, total)",
    ),
    Edit(
        "constant",
        "Scales are a thousandth too large.",
        "lower = gl.minimum(gl.load(scales), gl.load(scales + 1))",
        "lower = gl.minimum(gl.load(scales), gl.load(scales + 1)) * 1.001",
    ),
]
