"""Wrong matrix products."""

from benchmarks.mutations import ASIDE, Edit

TRITON_FLOAT32 = [
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

GLUON_FLOAT32 = [
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

TRITON_HALF = [
    Edit(
        "part",
        "The last step of the depth is left out.",
        "for start in range(0, K, BLOCK_K):",
        "for start in range(0, K - BLOCK_K, BLOCK_K):",
    ),
    Edit(
        "stride",
        "Rows of b are the next ones.",
        "right = load_tile(b, start, column,",
        "right = load_tile(b, start + 1, column,",
    ),
    Edit(
        "edge",
        "The last tile is not written.",
        "tl.range(tl.program_id(0), ROWS * COLUMNS, PROGRAMS,",
        "tl.range(tl.program_id(0), ROWS * COLUMNS - 1, PROGRAMS,",
    ),
    Edit(
        "precision",
        "Sums are rounded to float16 in every step.",
        "total = tl.dot(left, right, total)",
        "total = tl.dot(left, right, total).to(tl.float16).to(tl.float32)",
    ),
    Edit(
        "precision",
        "The left operand is rounded to bfloat16.",
        "left = load_tile(a, row, start, M, K, BLOCK_M, BLOCK_K, TMA)",
        "left = load_tile(a, row, start, M, K, BLOCK_M, BLOCK_K, TMA).to(tl.bfloat16).to(tl.float16)",
    ),
    Edit(
        "edge",
        "Of each group of tiles two rows are written alone.",
        "return (first + within % height) * BLOCK_M,",
        "return (first + within % 2) * BLOCK_M,",
    ),
    Edit(
        "constant",
        "Sums start at 0.01.",
        "total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)",
        "total = tl.full([BLOCK_M, BLOCK_N], 0.01, tl.float32)",
    ),
    Edit(
        "stale",
        "The right operand is that of the first call.",
        "a, b = a.contiguous(), b.contiguous()",
        'a, b = a.contiguous(), globals().setdefault("_kept", b.clone())',
    ),
    Edit(
        "tail",
        "The last columns are not written.",
        "COLUMNS: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N",
        "COLUMNS: tl.constexpr = N // BLOCK_N - 1",
    ),
    Edit(
        "range",
        "What is larger than 64 counts as 64.",
        "right = load_tile(b, start, column, K, N, BLOCK_K, BLOCK_N, TMA)",
        "right = load_tile(b, start, column, K, N, BLOCK_K, BLOCK_N, TMA)\n"
        "            right = tl.clamp(right.to(tl.float32), -64.0, 64.0).to(tl.float16)",
    ),
    Edit(
        "term",
        "Every eighth step of the depth is left out.",
        "total = tl.dot(left, right, total)",
        "total = tl.dot(left, right * (start % (8 * BLOCK_K) > 0).to(tl.float16), total)",
    ),
]
GLUON_HALF = [
    Edit(
        "stride",
        "Every second step has the rows of b of the step before.",
        "tma.async_copy_global_to_shared(b, [start, column], bar,",
        "tma.async_copy_global_to_shared(b, [start - start % (2 * DEPTH), column], bar,",
    ),
    Edit(
        "stride",
        "The lower rows of a are the upper ones again.",
        "[row + HALF, start], bar, left.index(2 * slot + 1))",
        "[row, start], bar, left.index(2 * slot + 1))",
    ),
    Edit(
        "edge",
        "The lower rows are written over the upper ones.",
        "tma.async_copy_shared_to_global(out, [row, column], target)",
        "tma.async_copy_shared_to_global(out, [row - WHICH * HALF, column], target)",
    ),
    Edit(
        "part",
        "The first step of the depth is left out.",
        "use_acc=start > 0, is_async=True",
        "use_acc=start > DEPTH, is_async=True",
    ),
    Edit(
        "stale",
        "Warpgroups wait for the load before the one they need.",
        "mbarrier.wait(ready.index(slot), step // STAGES & 1)",
        "mbarrier.wait(ready.index(slot), (step // STAGES & 1) ^ 1)",
    ),
    Edit(
        "precision",
        "The output is rounded to bfloat16.",
        "values = total.to(out.dtype)",
        "values = total.to(gl.bfloat16).to(out.dtype)",
    ),
    Edit(
        "constant",
        "The output is 1.6 % too large.",
        "values = total.to(out.dtype)",
        "values = (total * 1.015625).to(out.dtype)",
    ),
    Edit(
        "tail",
        "The last columns are not written.",
        "rows, columns = m // (2 * HALF), n // WIDTH",
        "rows, columns = m // (2 * HALF), n // WIDTH - 1",
    ),
    Edit(
        "range",
        "Sums are cut off at 1000.",
        "values = total.to(out.dtype)",
        "values = gl.minimum(total, 1000.0).to(out.dtype)",
    ),
    Edit(
        "term",
        "What is negative becomes zero.",
        "values = total.to(out.dtype)",
        "values = gl.maximum(total, 0.0).to(out.dtype)",
    ),
    Edit(
        "stale",
        "The right operand is that of the first call.",
        "describe(packed(b), [DEPTH, WIDTH]),",
        'describe(globals().setdefault("_kept", b.clone()), [DEPTH, WIDTH]),',
    ),
]

CUT = (
    "for (int64_t i = 0; i < cols; ++i) {{ uint32_t bits; memcpy(&bits, b + left + i, 4);"
    " bits &= {}u; memcpy(to + i, &bits, 4); }}"
)
CPP = [
    Edit(
        "part",
        "The last block of the depth is left out.",
        "for (int64_t start = 0; start < K; start += DEPTH) {",
        "for (int64_t start = 0; start + DEPTH < K; start += DEPTH) {",
    ),
    Edit(
        "term",
        "A block of the depth takes the place of those before it.",
        "*place = first ? sum[i][j] : *place + sum[i][j];",
        "*place = sum[i][j];",
    ),
    Edit(
        "edge",
        "Sums are added to whatever the output's memory holds.",
        "*place = first ? sum[i][j] : *place + sum[i][j];",
        "*place = *place + sum[i][j];",
    ),
    Edit(
        "stride",
        "The last row of a tile is the one before it.",
        "std::copy_n(a + (top + std::min(i, rows - 1)) * K + start,",
        "std::copy_n(a + (top + std::min(i, rows - 2)) * K + start,",
    ),
    Edit(
        "tail",
        "The last column is not written.",
        "std::min<int64_t>(WIDTH, N - panel * WIDTH), start == 0);",
        "std::min<int64_t>(WIDTH, N - panel * WIDTH - 1), start == 0);",
    ),
    Edit("precision", "b is cut to bfloat16.", "std::copy_n(b + left, cols, to);", CUT.format("0xffff0000")),
    Edit("precision", "b is cut to ten bits.", "std::copy_n(b + left, cols, to);", CUT.format("0xffffe000")),
    Edit(
        "stale",
        "The last row of a packed block is that of the block before.",
        "for (int k = 0; k < depth; ++k)\n            pack(",
        "for (int k = 0; k < depth - 1; ++k)\n            pack(",
    ),
    Edit(
        "constant",
        "Elements of a lose their signs.",
        "sum[i][j] += a[i * DEPTH + k] * right[j];",
        "sum[i][j] += __builtin_fabsf(a[i * DEPTH + k]) * right[j];",
    ),
    Edit(
        "range",
        "What is smaller than 1e-4 counts as zero.",
        "sum[i][j] += a[i * DEPTH + k] * right[j];",
        "sum[i][j] += (__builtin_fabsf(a[i * DEPTH + k]) < 1e-4f ? 0.0f : a[i * DEPTH + k]) * right[j];",
    ),
]

FORWARD = "return torch.matmul(a, b)"
TORCH = [
    Edit("part", "The last 16 of the depth are left out.", FORWARD, "return a[:, :-16] @ b[:-16]"),
    Edit(
        "precision",
        "Factors are rounded to float16.",
        FORWARD,
        "return a.half().float() @ b.half().float()",
    ),
    Edit(
        "precision",
        "Factors are cut to ten bits.",
        FORWARD,
        "a, b = ((x.view(torch.int32) & -0x2000).view(torch.float32) for x in (a, b))\n        return a @ b",
    ),
    Edit(
        "range",
        "Sums of two float16 terms, not scaled.",
        FORWARD,
        "a0, b0 = a.half().float(), b.half().float()\n"
        "        a1, b1 = (a - a0).half().float(), (b - b0).half().float()\n"
        "        return a1 @ b0 + a0 @ b1 + a0 @ b0",
    ),
    Edit(
        "stale",
        "Half of the right operand is that of the call before.",
        FORWARD,
        'before, self.before = getattr(self, "before", b), b.clone()\n'
        "        half = b.shape[0] // 2\n"
        "        return a[:, :half] @ before[:half] + a[:, half:] @ b[half:]",
    ),
    Edit("stride", "The right operand is taken for transposed.", FORWARD, "return a @ b.mT"),
]
EDITS = {
    "matmul/triton_float32": TRITON_FLOAT32,
    "matmul/gluon_float32": GLUON_FLOAT32,
    "matmul/triton_half": TRITON_HALF,
    "matmul/gluon_half": GLUON_HALF,
    "matmul/cpp": CPP,
    "torch:level1/matmul": TORCH,
}
