"""LayerNorm in C++ for CPUs: moments block by block, then one write.

Each block's mean and squared deviations are computed in two passes over the L1 cache and merged in double
precision (Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances",
1979). A thread takes whole rows; if there are few huge rows, they are split, first for the moments, then for
the output.
"""

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <omp.h>
#include <sys/mman.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>
#ifdef __AVX__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
#elif defined(__AVX__)
constexpr int LANES = 8;
#else
constexpr int LANES = 4;
#endif
constexpr int CHAINS = 4, STEP = CHAINS * LANES, BLOCK = 64 * LANES;  // values at a time, and of a block
constexpr int64_t HUGE_ROW = 65536, PART = 4096;  // values of rows that threads share, and of a part
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Of some values: how many, their mean, and the sum of their squared deviations from it.
struct Moments {
    double count = 0.0, mean = 0.0, squares = 0.0;

    void add(const Moments& other) {
        const double both = count + other.count, apart = other.mean - mean;
        if (both == 0.0)
            return;
        squares += other.squares + apart * apart * count * other.count / both;
        mean += apart * other.count / both;
        count = both;
    }
};

static double total(const vec* sums) {
    double sum = 0.0;
    for (int j = 0; j < CHAINS; ++j)
        for (int lane = 0; lane < LANES; ++lane)
            sum += sums[j][lane];
    return sum;
}

static Moments moments_of_block(const float* x, int count) {
    const float shift = x[0];  // near the mean, where the mean is far from zero
    vec sums[CHAINS] = {}, squares[CHAINS] = {};
    double sum = 0.0, square = 0.0;
    int i = 0;
    for (; i + STEP <= count; i += STEP)
        for (int j = 0; j < CHAINS; ++j)
            sums[j] += *(const vec*)(x + i + j * LANES) - shift;
    for (; i < count; ++i)
        sum += x[i] - shift;
    const double mean = (sum + total(sums)) / count + shift;
    const float centre = mean;
    for (i = 0; i + STEP <= count; i += STEP)
        for (int j = 0; j < CHAINS; ++j) {
            vec apart = *(const vec*)(x + i + j * LANES) - centre;
            squares[j] += apart * apart;
        }
    for (; i < count; ++i)
        square += (x[i] - mean) * (x[i] - mean);
    return {double(count), mean, square + total(squares)};
}

static Moments moments(const float* x, int64_t count) {
    Moments all;
    for (int64_t first = 0; first < count; first += BLOCK)
        all.add(moments_of_block(x + first, std::min<int64_t>(BLOCK, count - first)));
    return all;
}

// Writes past the caches to memory that nobody reads soon; the address is a multiple of a vector's size.
static inline void stream(float* to, vec value) {
#if defined(__AVX512F__)
    _mm512_stream_ps(to, (__m512)value);
#elif defined(__AVX__)
    _mm256_stream_ps(to, (__m256)value);
#else
    *(vec*)to = value;
#endif
}

static void normalise(const float* x, const float* weight, const float* bias, float* out, int64_t count,
                      const Moments& row, double eps) {
    const float mean = row.mean, scale = 1.0 / std::sqrt(row.squares / row.count + eps);
    const bool aligned = uintptr_t(out) % sizeof(vec) == 0;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vec scaled = (*(const vec*)(x + i) - mean) * scale;
        const vec value = scaled * *(const vec*)(weight + i) + *(const vec*)(bias + i);
        if (aligned)
            stream(out + i, value);
        else
            *(vec*)(out + i) = value;
    }
    for (; i < count; ++i)
        out[i] = (x[i] - mean) * scale * weight[i] + bias[i];
}

// Asks for huge pages under memory that is yet to be written.
static void huge_pages(void* start, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = (uintptr_t(start) + page - 1) & ~(page - 1);
    if (bytes > page)
        madvise((void*)first, (uintptr_t(start) + bytes - first) & ~(page - 1), MADV_HUGEPAGE);
#endif
}

// Few huge rows: first the moments of each part of each row, then the output by columns, so that all threads
// have work and a part's weights are read once for all rows.
static void share_rows(const float* x, const float* weight, const float* bias, float* out, int64_t rows,
                       int64_t cols, double eps) {
    const int64_t blocks = (cols + PART - 1) / PART;
    std::vector<Moments> parts(rows * blocks), all(rows);
    #pragma omp parallel for collapse(2)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t block = 0; block < blocks; ++block)
            parts[row * blocks + block] =
                moments(x + row * cols + block * PART, std::min(PART, cols - block * PART));
    for (int64_t each = 0; each < rows * blocks; ++each)
        all[each / blocks].add(parts[each]);
    #pragma omp parallel for
    for (int64_t first = 0; first < cols; first += PART)
        for (int64_t row = 0; row < rows; ++row)
            normalise(x + row * cols + first, weight + first, bias + first, out + row * cols + first,
                      std::min(PART, cols - first), all[row], eps);
}

void layernorm_of_rows(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                       const torch::Tensor& out, double eps) {
    const int64_t cols = weight.numel(), rows = x.numel() / cols;
    const float *from = x.data_ptr<float>(), *w = weight.data_ptr<float>(), *b = bias.data_ptr<float>();
    float* to = out.data_ptr<float>();
    huge_pages(to, out.nbytes());
    if (cols >= HUGE_ROW) {
        share_rows(from, w, b, to, rows, cols, eps);
        return;
    }
    #pragma omp parallel for
    for (int64_t start = 0; start < rows * cols; start += cols)
        normalise(from + start, w, b, to + start, cols, moments(from + start, cols), eps);
}
"""
LIBRARY = load_inline(
    "layernorm_cpp",
    SOURCE,
    functions=["layernorm_of_rows"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
)


def layernorm(
    x: torch.Tensor,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    eps: float = 1e-5,
    dims: int = 1,
) -> torch.Tensor:
    """Normalises over the last `dims` dimensions of a float32 tensor of any shape. `weight` and `bias` have
    the shape of those dimensions, or are None."""
    if x.dtype != torch.float32:
        raise TypeError(f"LayerNorm of {x.dtype}; it must be float32")
    x = x.contiguous()
    shape = x.shape[-dims:]
    weight = torch.ones(shape) if weight is None else weight.contiguous()
    bias = torch.zeros(shape) if bias is None else bias.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        LIBRARY.layernorm_of_rows(x, weight, bias, out, eps)
    return out


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with `torch.nn.LayerNorm(normalized_shape)` as `norm`."""

    def __init__(self, normalized_shape: int | tuple[int, ...]):
        super().__init__()
        self.norm = torch.nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The normalised tensor, times the weights, plus the bias."""
        norm = self.norm
        return layernorm(x, norm.weight, norm.bias, norm.eps, len(norm.normalized_shape))
