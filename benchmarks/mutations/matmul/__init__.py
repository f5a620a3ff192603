"""Wrong matrix products."""

from benchmarks.mutations import Edit
from benchmarks.mutations.matmul import float32, half

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
    "matmul/triton_float32": float32.TRITON,
    "matmul/gluon_float32": float32.GLUON,
    "matmul/triton_half": half.TRITON,
    "matmul/gluon_half": half.GLUON,
    "matmul/cpp": CPP,
    "torch:level1/matmul": TORCH,
}
