"""Wrong sums of rows."""

from benchmarks.mutations import ASIDE, Edit

TRITON = [
    Edit(
        "part",
        "The last block of a row is not added.",
        "for start in tl.range(0, COLS, BLOCK, loop_unroll_factor=UNROLL):",
        "for start in tl.range(0, COLS - BLOCK, BLOCK, loop_unroll_factor=UNROLL):",
    ),
    Edit(
        "tail",
        "The last row is not summed.",
        "grid = (triton.cdiv(rows, each),)",
        "grid = (triton.cdiv(rows - 1, each),)",
    ),
    Edit(
        "stride",
        "Rows are an element too close.",
        "source = x + line[:, None] * COLS + place",
        "source = x + line[:, None] * (COLS - 1) + place",
    ),
    Edit(
        "precision",
        "What is added is rounded to six bits.",
        "total += value.to(tl.float32)",
        "total += value.to(tl.float8e5).to(tl.float32)",
    ),
    Edit(
        "constant",
        "Absolute values are added.",
        "tl.store(out + line, tl.sum(total, axis=1), mask=line < rows)",
        "tl.store(out + line, tl.sum(tl.abs(total), axis=1), mask=line < rows)",
    ),
    Edit(
        "edge",
        "The last element of a block is the one before it.",
        "place = tl.arange(0, BLOCK)[None, :]",
        "place = tl.minimum(tl.arange(0, BLOCK), BLOCK - 2)[None, :]",
    ),
    Edit(
        "edge",
        "Sums are added to whatever the output's memory holds.",
        "tl.store(out + line, tl.sum(total, axis=1), mask=line < rows)",
        "tl.atomic_add(out + line, tl.sum(total, axis=1).to(out.dtype.element_ty), mask=line < rows)",
    ),
    Edit(
        "stale",
        "Nobody waits for the sums.",
        "    sum_kernel[grid]",
        ASIDE + "sum_kernel[grid]",
    ),
    Edit(
        "range",
        "Partial sums are taken to be 64 at most.",
        "tl.store(out + line, tl.sum(total, axis=1), mask=line < rows)",
        "tl.store(out + line, tl.sum(tl.clamp(total, -64.0, 64.0), axis=1), mask=line < rows)",
    ),
    Edit(
        "term",
        "Of the partial sums the first one is left out.",
        "tl.store(out + line, tl.sum(total, axis=1), mask=line < rows)",
        "tl.store(out + line, tl.sum(tl.where(place > 0, total, 0.0), axis=1), mask=line < rows)",
    ),
]

FORWARD = "return x.sum(dim=-1)"
TORCH = [
    Edit(
        "part", "The first 31 of 32 columns.", FORWARD, "return x[..., : x.shape[-1] * 31 // 32].sum(dim=-1)"
    ),
    Edit("tail", "All but the last column.", FORWARD, "return x[..., :-1].sum(dim=-1)"),
    Edit("term", "Twice the even columns.", FORWARD, "return 2 * x[..., ::2].sum(dim=-1)"),
    Edit(
        "precision",
        "Partial sums of 256 are rounded to bfloat16.",
        FORWARD,
        "parts = x.unflatten(-1, (-1, 256)).sum(-1).bfloat16()\n"
        "        return parts.float().sum(-1).to(x.dtype)",
    ),
    Edit("range", "Infinities are numbers.", FORWARD, "return x.clamp(-1e4, 1e4).sum(dim=-1)"),
]

EDITS = {"sum_rows/triton": TRITON, "torch:library/sum_rows": TORCH}
