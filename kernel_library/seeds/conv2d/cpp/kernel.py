"""2-D convolution in C++ for CPUs: register tiles of neighbouring pixels by channels.

A part of the image is copied into a border of zeros. Each tap of the window is then one offset in that copy,
and its weights, packed with the channels innermost, are whole vectors. A finished row is transposed to the
output's layout in registers; its destination is prefetched into the cache meanwhile.
"""

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <new>
#include <vector>

#if defined(__AVX512F__)
constexpr int FLOATS = 16, TILE_Q = 8;  // of a vector; pixels of a tile, with 3 vectors 24 of 32 registers
#elif defined(__AVX__)
constexpr int FLOATS = 8, TILE_Q = 4;  // 12 of 16 registers
#else
constexpr int FLOATS = 4, TILE_Q = 4;
#endif
constexpr int CHUNK = 128;  // taps that are added up in registers
constexpr int MOST = 3, ROWS = 8;  // vectors of channels of a tile at most, and output rows of a task
typedef float floats __attribute__((vector_size(4 * FLOATS), aligned(4), may_alias));

// Allocates at multiples of a cache line, so that no vector lies in two of them.
template <class T>
struct Aligned {
    typedef T value_type;
    Aligned() = default;
    template <class Other>
    Aligned(const Aligned<Other>&) {}
    T* allocate(size_t count) { return (T*)operator new(count * sizeof(T), std::align_val_t(64)); }
    void deallocate(T* start, size_t) { operator delete(start, std::align_val_t(64)); }
    bool operator==(const Aligned&) const { return true; }
    bool operator!=(const Aligned&) const { return false; }
};
typedef std::vector<float, Aligned<float>> Floats;

static int64_t rounded_up(int64_t count, int64_t step) {
    return (count + step - 1) / step * step;
}

// Adds TILE_Q pixels of VECTORS vectors of channels over `taps` taps to to[pixel][channel], `channels` apart.
template <int VECTORS>
static void tile(const float* corner, int64_t stride, const int64_t* distance, const float* weight,
                 int64_t taps, float* to, int64_t channels) {
    floats sum[TILE_Q][VECTORS] = {};
    #pragma GCC unroll 2
    for (int64_t tap = 0; tap < taps; ++tap) {
        const float* pixel = corner + distance[tap];
        floats w[VECTORS];
        for (int j = 0; j < VECTORS; ++j)
            w[j] = *(const floats*)(weight + (tap * VECTORS + j) * FLOATS);
        for (int i = 0; i < TILE_Q; ++i)
            for (int j = 0; j < VECTORS; ++j)
                sum[i][j] += pixel[i * stride] * w[j];
    }
    #pragma GCC unroll 8
    for (int i = 0; i < TILE_Q; ++i)
        #pragma GCC unroll 3
        for (int j = 0; j < VECTORS; ++j)
            *(floats*)(to + i * channels + j * FLOATS) += sum[i][j];
}

struct Convolution {
    const int64_t rows, stride, padding, C, H, W, K, R, S;  // output rows of a task, and the sizes
    const int64_t P = (H + 2 * padding - R) / stride + 1, Q = (W + 2 * padding - S) / stride + 1;
    const int64_t taps = C * R * S, channels = rounded_up(K, FLOATS);
    const int64_t width = rounded_up(Q, TILE_Q);  // pixels of a row, whole tiles
    const int64_t height = (rows - 1) * stride + R, pitch = (width - 1) * stride + S;  // of a task's pixels
    std::vector<int64_t> distance = std::vector<int64_t>(taps);  // of each tap from the window's corner
    Floats weights = Floats(channels * taps);
    Floats start = Floats(channels);  // the bias

    // Channels of the block that begins with channel k.
    int64_t block(int64_t k) const {
        return std::min<int64_t>(MOST * FLOATS, channels - k);
    }

    // Weights become [block of channels][tap][channel], with zeros behind the last channel.
    void pack(const float* weight, const float* bias) {
        for (int64_t tap = 0; tap < taps; ++tap) {
            const int64_t s = tap % S, r = tap / S % R, c = tap / (R * S);
            distance[tap] = (c * height + r) * pitch + s;
        }
        std::copy_n(bias, K, start.data());
        #pragma omp parallel for
        for (int64_t k = 0; k < K; ++k) {
            const int64_t first = k - k % (MOST * FLOATS);
            float* to = weights.data() + first * taps + k - first;
            for (int64_t tap = 0; tap < taps; ++tap)
                to[tap * block(first)] = weight[k * taps + tap];
        }
    }

    // `height` rows of an image from row `top` on, in a border of zeros: to[C][height][pitch].
    void copy(const float* image, int64_t top, float* to) const {
        for (int64_t c = 0; c < C; ++c)
            for (int64_t h = top; h < top + height; ++h, to += pitch) {
                std::fill_n(to, pitch, 0.0f);
                if (0 <= h && h < H)
                    std::copy_n(image + (c * H + h) * W, std::min(W, pitch - padding), to + padding);
            }
    }

    // One output row out of the folded part that its windows begin in: to[width][channels].
    void row(const float* part, float* to) const {
        for (int64_t q = 0; q < width; ++q)
            std::copy_n(start.data(), channels, to + q * channels);
        for (int64_t k = 0; k < channels; k += block(k))
            for (int64_t tap = 0; tap < taps; tap += CHUNK)
                for (int64_t q = 0; q < width; q += TILE_Q)
                    (block(k) == FLOATS ? tile<1> : block(k) == 2 * FLOATS ? tile<2> : tile<MOST>)(
                        part + q * stride, stride, &distance[tap], &weights[k * taps + tap * block(k)],
                        std::min<int64_t>(CHUNK, taps - tap), to + q * channels + k, channels);
    }
};

// Transposes FLOATS x FLOATS values: blocks of STEP, then of twice that, change places across the diagonal.
template <int STEP = 1>
static inline void transpose(floats* rows) {
    typedef int32_t index __attribute__((vector_size(4 * FLOATS)));
    index low, high;
    #pragma GCC unroll 16
    for (int lane = 0; lane < FLOATS; ++lane) {
        low[lane] = lane & STEP ? FLOATS + lane - STEP : lane;
        high[lane] = lane & STEP ? FLOATS + lane : lane + STEP;
    }
    #pragma GCC unroll 16
    for (int i = 0; i < FLOATS; ++i)
        if (!(i & STEP)) {
            const floats upper = rows[i], lower = rows[i + STEP];
            rows[i] = __builtin_shuffle(upper, lower, low);
            rows[i + STEP] = __builtin_shuffle(upper, lower, high);
        }
    if constexpr (2 * STEP < FLOATS)
        transpose<2 * STEP>(rows);
}

// Has the second-level cache fetch what is to be written soon: `count` pixels of K planes.
static void prefetch(const float* out, int64_t K, int64_t count, int64_t plane) {
    for (int64_t k = 0; k < K; ++k)
        for (int64_t q = 0; q < count; q += 16)
            __builtin_prefetch(out + k * plane + q, 1, 2);
}

// Writes row[pixel][channel], `channels` apart, to `count` pixels of K planes.
static void store(const float* row, int64_t channels, float* out, int64_t K, int64_t count, int64_t plane) {
    if (count < FLOATS) {
        for (int64_t k = 0; k < K; ++k)
            for (int64_t q = 0; q < count; ++q)
                out[k * plane + q] = row[q * channels + k];
        return;
    }
    for (int64_t k = 0; k < K; k += FLOATS)
        for (int64_t next = 0; next < count; next += FLOATS) {
            const int64_t q = std::min(next, count - FLOATS);  // the last block overlaps the one before
            floats block[FLOATS];
            for (int i = 0; i < FLOATS; ++i)
                block[i] = *(const floats*)(row + (q + i) * channels + k);
            transpose(block);
            for (int i = 0; i < std::min<int64_t>(FLOATS, K - k); ++i)
                *(floats*)(out + (k + i) * plane + q) = block[i];
        }
}

void convolve(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
              const torch::Tensor& out, int64_t stride, int64_t padding) {
    Convolution conv{ROWS, stride, padding, x.size(1), x.size(2), x.size(3),
                     weight.size(0), weight.size(2), weight.size(3)};
    conv.pack(weight.data_ptr<float>(), bias.data_ptr<float>());
    const float* images = x.data_ptr<float>();
    float* results = out.data_ptr<float>();
    #pragma omp parallel
    {
        std::vector<float> part(conv.C * conv.height * conv.pitch);
        Floats row(conv.width * conv.channels);
        #pragma omp for collapse(2) schedule(dynamic)
        for (int64_t n = 0; n < x.size(0); ++n)
            for (int64_t first = 0; first < conv.P; first += ROWS) {
                conv.copy(images + n * conv.C * conv.H * conv.W, first * stride - padding, part.data());
                for (int64_t p = first; p < std::min(first + ROWS, conv.P); ++p) {
                    float* place = results + (n * conv.K * conv.P + p) * conv.Q;
                    prefetch(place, conv.K, conv.Q, conv.P * conv.Q);
                    conv.row(part.data() + (p - first) * stride * conv.pitch, row.data());
                    store(row.data(), conv.channels, place, conv.K, conv.Q, conv.P * conv.Q);
                }
            }
    }
}
"""
LIBRARY = load_inline(
    "conv2d_cpp",
    SOURCE,
    functions=["convolve"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
)


def conv2d(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, stride: int = 1, padding: int = 0
) -> torch.Tensor:
    """`F.conv2d` of float32 tensors."""
    if x.dtype != torch.float32 or weight.dtype != torch.float32:
        raise TypeError(f"conv2d of {x.dtype} and {weight.dtype}; both must be float32")
    (n, _, h, w), (k, _, r, s) = x.shape, weight.shape
    bias = torch.zeros(k) if bias is None else bias.contiguous()
    out = torch.empty((n, k, (h + 2 * padding - r) // stride + 1, (w + 2 * padding - s) // stride + 1))
    LIBRARY.convolve(x.contiguous(), weight.contiguous(), bias, out, stride, padding)
    return out


class ModelNew(torch.nn.Module):
    """A drop-in replacement of a module with `torch.nn.Conv2d(...)` as `conv`."""

    def __init__(self, in_channels: int, out_channels: int, kernel_size: int, stride: int, padding: int):
        super().__init__()
        self.conv = torch.nn.Conv2d(in_channels, out_channels, kernel_size, stride=stride, padding=padding)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution."""
        conv = self.conv
        return conv2d(x, conv.weight, conv.bias, conv.stride[0], conv.padding[0])
