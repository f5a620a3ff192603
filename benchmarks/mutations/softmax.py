"""Wrong softmaxes."""

from benchmarks.mutations import Edit

TRITON = [
    Edit(
        "part",
        "The sum lacks the first step over the row.",
        "for step in range(0, LOOPED, STEP):",
        "for step in range(STEP, LOOPED, STEP):",
    ),
    Edit(
        "term",
        "Sums are not rescaled to the row's maximum.",
        "total = total * tl.exp2((peak - highest) * LOG2E) + sum_of_threads",
        "total = total + sum_of_threads",
    ),
    Edit(
        "stride",
        "Steps of a thread overlap by an element a row of the tile.",
        "place = tl.arange(0, DEPTH)[:, None] * LANES +",
        "place = tl.arange(0, DEPTH)[:, None] * (LANES - 1) +",
    ),
    Edit(
        "tail",
        "The last element of a long row is not written.",
        "tl.store(out + start + held, kept * scale, cache_modifier",
        "tl.store(out + start + held, kept * scale, mask=held < COLS - 1, cache_modifier",
    ),
    Edit(
        "mask",
        "Running maxima start at -inf: where a thread has seen nothing else, the sum is NaN.",
        "LOWEST = tl.constexpr(-3.4028234663852886e38)",
        'LOWEST = tl.constexpr(float("-inf"))',
    ),
    Edit(
        "part",
        "The maximum lacks the part of the row that stays in registers.",
        "highest = tl.max(tl.maximum(peak, max_of_threads(kept, THREADS, VECTOR)), axis=0)",
        "highest = tl.max(peak, axis=0)",
    ),
    Edit(
        "constant",
        "1.4427 for the logarithm.",
        "LOG2E = tl.constexpr(1.4426950408889634)",
        "LOG2E = tl.constexpr(1.4427)",
    ),
    Edit(
        "precision",
        "The part that stays in registers is rounded to float16.",
        'kept = tl.load(x + start + held, eviction_policy="evict_first").to(tl.float32)',
        'kept = tl.load(x + start + held, eviction_policy="evict_first").to(tl.float16).to(tl.float32)',
    ),
    Edit(
        "range",
        "A row in registers is exponentiated without its maximum.",
        "peak = tl.maximum(tl.max(value, axis=1), LOWEST)",
        "peak = tl.zeros([EACH], tl.float32)",
        case=1,
    ),
    Edit(
        "part",
        "A row in registers is summed without its last 512 elements.",
        "tl.sum(value, axis=1)",
        "tl.sum(tl.where(place < COLS - 512, value, 0.0), axis=1)",
        case=1,
    ),
    Edit(
        "edge",
        "The last element of the edge is not written.",
        "edge * (1.0 / whole), mask=number < EDGE,",
        "edge * (1.0 / whole), mask=number < EDGE - 1,",
        case=2,
    ),
    Edit(
        "mask",
        "Places behind the edge count as zeros, whose exponentials are added.",
        'edge = tl.load(x + spot, mask=number < EDGE, other=float("-inf"))',
        "edge = tl.load(x + spot, mask=number < EDGE, other=0.0)",
        case=2,
    ),
    Edit(
        "stride",
        "Where a row starts between multiples of 16 bytes, it is read from the row before.",
        "start = (first + VECTOR - 1) // VECTOR * VECTOR",
        "start = first // VECTOR * VECTOR",
        case=2,
    ),
]

CPP = [
    Edit(
        "term",
        "Sums are not rescaled when the maximum grows.",
        "sum = sum * exponential(before - top) + sum_of_exponentials",
        "sum = sum + sum_of_exponentials",
    ),
    Edit(
        "part",
        "The first block is in neither maximum nor sum.",
        "for (int64_t first = 0; first < cols; first += BLOCK) {",
        "for (int64_t first = BLOCK; first < cols; first += BLOCK) {",
    ),
    Edit(
        "tail",
        "The last vector of a row is not written.",
        "for (int64_t i = 0; i < cols; i += LANES) {",
        "for (int64_t i = 0; i + LANES < cols; i += LANES) {",
    ),
    Edit(
        "mask",
        "The running maximum starts at -inf: a first block of -inf makes NaN.",
        "float top = -FLT_MAX;",
        "float top = -__builtin_inff();",
    ),
    Edit(
        "constant",
        "1/25 for 1/4! in the series.",
        "p = 1.0f / 24 + r * p;",
        "p = 1.0f / 25 + r * p;",
    ),
    Edit(
        "precision",
        "The series ends two terms earlier.",
        "p = 1.0f / 24 + r * p;",
        "p = vec{} + 1.0f / 24;",
    ),
    Edit(
        "stale",
        "Threads share one sum.",
        "double sum = 0.0;",
        "static volatile double sum; sum = 0.0;",
    ),
    Edit(
        "part",
        "The maximum lacks the last lane of its vectors.",
        "for (int lane = 0; lane < LANES; ++lane)\n            top = std::max(top, each[lane]);",
        "for (int lane = 0; lane < LANES - 1; ++lane)\n            top = std::max(top, each[lane]);",
    ),
    Edit(
        "stride",
        "Odd rows are read from the row before.",
        "softmax_of_row(from + row * cols,",
        "softmax_of_row(from + row / 2 * 2 * cols,",
    ),
    Edit(
        "range",
        "Exponentials below exp(-12) become zero.",
        "const vec lowest = vec{} - 87.0f,",
        "const vec lowest = vec{} - 12.0f,",
    ),
]

FORWARD = "return torch.softmax(x, dim=-1)"
TORCH = [
    Edit(
        "range",
        "Without the maximum: infinite from 89 on.",
        FORWARD,
        "y = x.exp()\n        return y / y.sum(-1, keepdim=True)",
    ),
    Edit(
        "part",
        "The sum lacks the last 64 columns.",
        FORWARD,
        "y = (x - x.amax(-1, keepdim=True)).exp()\n        return y / y[..., :-64].sum(-1, keepdim=True)",
    ),
    Edit(
        "part",
        "The maximum is that of the first half.",
        FORWARD,
        "y = (x - x[..., : x.shape[-1] // 2].amax(-1, keepdim=True)).exp()\n"
        "        return y / y.sum(-1, keepdim=True)",
    ),
    Edit(
        "stale",
        "The maximum is that of the call before, which is as good while it is near.",
        FORWARD,
        'peak, self.peak = getattr(self, "peak", None), x.amax(-1, keepdim=True)\n'
        "        y = (x - (self.peak if peak is None else peak)).exp()\n"
        "        return y / y.sum(-1, keepdim=True)",
    ),
    Edit(
        "mask",
        "-inf becomes the smallest number: a row of nothing else has a softmax.",
        FORWARD,
        "return torch.softmax(x.clamp(min=torch.finfo(x.dtype).min), dim=-1)",
    ),
    Edit(
        "constant",
        "Powers of two, by 1.4427.",
        FORWARD,
        "y = ((x - x.amax(-1, keepdim=True)) * 1.4427).exp2()\n        return y / y.sum(-1, keepdim=True)",
    ),
    Edit(
        "precision",
        "Exponentials are kept in float16.",
        FORWARD,
        "y = (x - x.amax(-1, keepdim=True)).exp().half().float()\n        return y / y.sum(-1, keepdim=True)",
    ),
]

EDITS = {"softmax/triton": TRITON, "softmax/cpp": CPP, "torch:level1/softmax": TORCH}
