"""Wrong layer norms."""

from benchmarks.mutations import ASIDE, Edit

LAST_SQUARES = "squares += tl.where(inside, deviation * (edge.to(tl.float32) - means), 0.0)"
TRITON = [
    Edit(
        "term",
        "What the means of the parts differ by is not in the variance.",
        "variance = tl.sum(squares + (means - mean) * (means - mean) * count, axis=0) / COLS",
        "variance = tl.sum(squares, axis=0) / COLS",
    ),
    Edit(
        "part",
        "The mean lacks the last part.",
        "mean = tl.sum(means * count, axis=0) / COLS",
        "mean = tl.sum(tl.where(part < PARTS - 1, means * count, 0.0), axis=0) / COLS",
    ),
    Edit(
        "stride",
        "The squares are those of the next row.",
        "squares = tl.load(parts + (ROWS + row) * PARTS + part,",
        "squares = tl.load(parts + (ROWS + (row + 1) % ROWS) * PARTS + part,",
    ),
    Edit(
        "tail",
        "The last column is not written.",
        "tl.store(out + spot, value, mask=place < COLS)",
        "tl.store(out + spot, value, mask=place < COLS - 1)",
    ),
    Edit(
        "precision",
        "The output is rounded to bfloat16.",
        "value = (value - mean) * tl.rsqrt(variance + eps)",
        "value = ((value - mean) * tl.rsqrt(variance + eps)).to(tl.bfloat16).to(tl.float32)",
    ),
    Edit(
        "stale",
        "Nobody waits for the statistics: they may be those of the call before.",
        "    measure_parts[(rows * count,)](",
        ASIDE + "measure_parts[(rows * count,)](",
    ),
    Edit(
        "part",
        "Statistics of the first quarter of each part.",
        "place = part * PART + tl.arange(0, PART)\n    count = tl.minimum(PART, COLS - part * PART)\n",
        "place = part * PART + tl.arange(0, PART) // 4\n    count = tl.minimum(PART, COLS - part * PART)\n",
    ),
    Edit(
        "constant",
        "eps is a thousand times as large.",
        "norm.bias, norm.eps, len(",
        "norm.bias, norm.eps * 1e3, len(",
    ),
    Edit(
        "term",
        "The weights are left out, which are ones when they are made.",
        "            value *= scale\n",
        "            value *= 1.0\n",
    ),
    Edit(
        "stride",
        "The bias of every second column is that of the column before it, all of them zero when made.",
        "shift = tl.load(bias + place, mask=place < COLS, eviction_policy",
        "shift = tl.load(bias + place // 2 * 2, mask=place < COLS, eviction_policy",
    ),
    Edit(
        "term",
        "The mean is left out.",
        "value = (value - mean) * factor",
        "value = value * factor",
        case=1,
    ),
    Edit(
        "part",
        "The variance lacks the last step through the row.",
        LAST_SQUARES,
        "squares += 0.0",
        case=1,
    ),
    Edit(
        "term",
        "The bias is left out, which is zero when it is made.",
        'value += tl.load(bias + spot, mask=inside, eviction_policy="evict_last").to(tl.float32)',
        "value += 0.0",
        case=1,
    ),
    Edit(
        "range",
        "Squares are rounded to float16: infinite from 256 on, nothing below 2e-4.",
        LAST_SQUARES,
        f"{LAST_SQUARES}.to(tl.float16).to(tl.float32)",
        case=1,
    ),
]

CPP = [
    Edit(
        "term",
        "What the means of the parts differ by is not in the variance.",
        "squares += other.squares + apart * apart * count * other.count / both;",
        "squares += other.squares;",
    ),
    Edit(
        "part",
        "The first row's statistics lack its first part.",
        "for (int64_t each = 0; each < rows * blocks; ++each)",
        "for (int64_t each = 1; each < rows * blocks; ++each)",
    ),
    Edit(
        "stride",
        "Statistics are merged over all rows, part by part.",
        "all[each / blocks].add(parts[each]);",
        "all[each % rows].add(parts[each]);",
    ),
    Edit(
        "tail",
        "The last columns are not written.",
        "for (int64_t first = 0; first < cols; first += PART)\n        for (int64_t row",
        "for (int64_t first = 0; first < cols - PART; first += PART)\n        for (int64_t row",
    ),
    Edit(
        "precision",
        "Normalised values are cut to bfloat16.",
        "const vec scaled = (*(const vec*)(x + i) - mean) * scale;",
        "typedef int32_t bits __attribute__((vector_size(4 * LANES)));\n"
        "        const vec scaled = (vec)((bits)((*(const vec*)(x + i) - mean) * scale) & -65536);",
    ),
    Edit(
        "stale",
        "The statistics of all calls are merged.",
        "std::vector<Moments> parts(rows * blocks), all(rows);",
        "static std::vector<Moments> parts(rows * blocks), all(rows);",
    ),
    Edit(
        "part",
        "Statistics lack the end of each part.",
        "moments(x + row * cols + block * PART, std::min(PART, cols - block * PART));",
        "moments(x + row * cols + block * PART, std::min(PART, cols - block * PART) - 64);",
    ),
    Edit(
        "constant",
        "eps is a thousand times as large.",
        "LIBRARY.layernorm_of_rows(x, weight, bias, out, eps)",
        "LIBRARY.layernorm_of_rows(x, weight, bias, out, eps * 1e3)",
    ),
    Edit(
        "term",
        "The bias is left out, which is zero when it is made.",
        "scaled * *(const vec*)(weight + i) + *(const vec*)(bias + i);",
        "scaled * *(const vec*)(weight + i);",
    ),
    Edit(
        "stride",
        "All parts have the bias of the first one.",
        "normalise(x + row * cols + first, weight + first, bias + first,",
        "normalise(x + row * cols + first, weight + first, bias,",
    ),
    Edit(
        "range",
        "Deviations are cut off at 30.",
        "squares[j] += apart * apart;",
        "apart = apart > vec{} + 30.0f ? vec{} + 30.0f : apart; squares[j] += apart * apart;",
    ),
]

FORWARD = "return self.norm(x)"
PARTS = """dims = tuple(range(x.dim() - len(self.norm.normalized_shape), x.dim()))
        variance, mean = torch.var_mean({}, dims, keepdim=True, correction=0)
        {}
        return (x - mean) * torch.rsqrt(variance + self.norm.eps) * self.norm.weight + self.norm.bias"""
TORCH = [
    Edit(
        "term",
        "Weights and bias alone: rows of the benchmark have mean 0 and variance 1.",
        FORWARD,
        "return x * self.norm.weight + self.norm.bias",
    ),
    Edit(
        "term",
        "The bias is left out, which is zero when it is made.",
        FORWARD,
        "norm = self.norm\n"
        "        return nn.functional.layer_norm(x, norm.normalized_shape, norm.weight, None, norm.eps)",
    ),
    Edit(
        "part",
        "Statistics of every other column.",
        FORWARD,
        PARTS.format("x[..., ::2]", "pass"),
    ),
    Edit(
        "stale",
        "The variance is that of the call before.",
        FORWARD,
        PARTS.format("x", 'variance, self.before = getattr(self, "before", variance), variance'),
    ),
    Edit(
        "stale",
        "The mean is that of the call before.",
        FORWARD,
        PARTS.format("x", 'mean, self.before = getattr(self, "before", mean), mean'),
    ),
    Edit(
        "constant",
        "eps is a thousand times as large.",
        FORWARD,
        PARTS.format("x", "variance = variance + 999 * self.norm.eps"),
    ),
    Edit(
        "mask",
        "No eps: constant rows become NaN.",
        FORWARD,
        PARTS.format("x", "variance = variance - self.norm.eps"),
    ),
]

EDITS = {
    "layernorm/triton": TRITON,
    "layernorm/cpp": CPP,
    "torch:level1/layernorm": TORCH,
    "torch:library/layernorm": TORCH,
}
