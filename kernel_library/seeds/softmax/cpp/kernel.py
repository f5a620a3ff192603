"""Softmax over the last dimension in C++ for CPUs: vectors, two sweeps over a row, one write.

The first sweep goes block by block: the block's maximum, then its exponentials, summed relative to the
largest value so far (Milakov, Gimelshein: "Online normalizer calculation for softmax", 2018). The second one
takes the exponentials again, mostly from the L2 cache, and bypasses the caches when writing.
"""

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <sys/mman.h>
#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <cstring>
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
constexpr int CHAINS = 4, BLOCK = 512 * LANES;  // maxima at a time, and values of a partial sum
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));

// exp(x) for x <= 0, to about 1 ulp: 2^n * exp(r) with |r| <= ln(2) / 2, exp(r) by its series to r^7 / 7!.
static inline vec exponential(vec x) {
    const vec lowest = vec{} - 87.0f, magic = vec{} + 12582912.0f;  // 1.5 * 2^23: rounds to integers
    vec rounded = (x < lowest ? lowest : x) * 1.44269504f + magic;
    vec n = rounded - magic;
    vec r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vec p = 1.0f / 720 + r * (1.0f / 5040);
    p = 1.0f / 120 + r * p;
    p = 1.0f / 24 + r * p;
    p = 1.0f / 6 + r * p;
    p = 0.5f + r * p;
    p = 1.0f + (r + r * r * p);
    vec power = (vec)(((ivec)rounded << 23) + 0x3f800000);  // 2^n
    return x < lowest ? vec{} : p * power;
}

static inline float exponential(float x) {
    return exponential(vec{} + x)[0];
}

// The values from x on, or, where fewer than a vector are left, these and minus infinities.
static inline vec load(const float* x, int64_t left) {
    if (left >= LANES)
        return *(const vec*)x;
    vec value = vec{} - __builtin_inff();
    memcpy(&value, x, left * sizeof(float));
    return value;
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

static float largest(const float* x, int64_t count, float top) {
    vec high[CHAINS];
    for (vec& each : high)
        each = vec{} + top;
    int64_t i = 0;
    for (; i + CHAINS * LANES <= count; i += CHAINS * LANES)
        for (int j = 0; j < CHAINS; ++j) {
            vec value = *(const vec*)(x + i + j * LANES);
            high[j] = value > high[j] ? value : high[j];
        }
    for (; i < count; ++i)
        top = std::max(top, x[i]);
    for (const vec& each : high)
        for (int lane = 0; lane < LANES; ++lane)
            top = std::max(top, each[lane]);
    return top;
}

static float sum_of_exponentials(const float* x, int64_t count, float top) {
    vec sums = {};
    for (int64_t i = 0; i < count; i += LANES)
        sums += exponential(load(x + i, count - i) - top);
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; ++lane)
        sum += sums[lane];
    return sum;
}

static void softmax_of_row(const float* x, float* out, int64_t cols) {
    float top = -FLT_MAX;  // finite, so that minus infinity in the input does not become NaN
    double sum = 0.0;
    for (int64_t first = 0; first < cols; first += BLOCK) {
        const int64_t count = std::min<int64_t>(BLOCK, cols - first);
        const float before = top;
        top = largest(x + first, count, top);
        sum = sum * exponential(before - top) + sum_of_exponentials(x + first, count, top);
    }
    const float scale = 1.0 / sum;
    const bool aligned = uintptr_t(out) % sizeof(vec) == 0;
    for (int64_t i = 0; i < cols; i += LANES) {
        const vec value = exponential(load(x + i, cols - i) - top) * scale;
        if (cols - i < LANES)
            memcpy(out + i, &value, (cols - i) * sizeof(float));
        else if (aligned)
            stream(out + i, value);
        else
            *(vec*)(out + i) = value;
    }
}

// Asks for huge pages under memory that is yet to be written.
static void huge_pages(void* start, size_t bytes) {
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, first = (uintptr_t(start) + page - 1) & ~(page - 1);
    if (bytes > page)
        madvise((void*)first, (uintptr_t(start) + bytes - first) & ~(page - 1), MADV_HUGEPAGE);
#endif
}

void softmax_of_rows(const torch::Tensor& x, const torch::Tensor& out) {
    const int64_t cols = x.size(-1), rows = x.numel() / cols;
    const float* from = x.data_ptr<float>();
    float* to = out.data_ptr<float>();
    huge_pages(to, out.nbytes());
    #pragma omp parallel for schedule(dynamic)
    for (int64_t row = 0; row < rows; ++row)
        softmax_of_row(from + row * cols, to + row * cols, cols);
}
"""
LIBRARY = load_inline(
    "softmax_cpp",
    SOURCE,
    functions=["softmax_of_rows"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Softmax over the last dimension of a float32 tensor of any shape."""
    if x.dtype != torch.float32:
        raise TypeError(f"softmax of {x.dtype}; it must be float32")
    x = x.contiguous()
    out = torch.empty_like(x)
    if x.numel() > 0:
        LIBRARY.softmax_of_rows(x, out)
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `softmax`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Softmax over the last dimension."""
        return softmax(x)
