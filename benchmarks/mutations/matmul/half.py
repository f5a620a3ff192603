"""Wrong matrix products of half precision on a GPU."""

from benchmarks.mutations import Edit

TRITON = [
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

GLUON = [
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
