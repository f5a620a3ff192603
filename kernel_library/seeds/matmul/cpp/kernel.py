"""Float32 matrix product in C++ for CPUs: register tiles on blocks that stay in the caches.

A tile's sums stay in registers over a block of the depth. B is packed once for all threads, in panels as wide
as a tile; a group of them stays in the second-level cache while the rows of A pass, copied to lie densely in
the first (Goto, van de Geijn: "Anatomy of high-performance matrix multiplication", 2008).
"""

import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <algorithm>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__)
constexpr int LANES = 16, TILE_M = 8, TILE_N = 3;  // rows and vectors of a tile: 24 of 32 registers
#elif defined(__AVX__)
constexpr int LANES = 8, TILE_M = 6, TILE_N = 2;  // 12 of 16 registers
#else
constexpr int LANES = 4, TILE_M = 6, TILE_N = 2;
#endif
constexpr int WIDTH = TILE_N * LANES, DEPTH = 256, PANELS = 768 / WIDTH;  // of panel, block, group
constexpr int AHEAD = 16;  // rows of a panel
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

// Adds a tile of the product of a [TILE_M][DEPTH] and b [depth][WIDTH] to the output, or puts it there if it
// is the `first`; only `rows` x `cols` values of it where the output ends.
static void tile(const float* a, const float* b, int depth, float* out, int64_t pitch, int rows, int cols,
                 bool first) {
    vec sum[TILE_M][TILE_N] = {};
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; j += LANES)
            __builtin_prefetch(out + i * pitch + j, 1);
    #pragma GCC unroll 4
    for (int k = 0; k < depth; ++k) {
        vec right[TILE_N];
        for (int j = 0; j < TILE_N; ++j) {
            __builtin_prefetch(b + (k + AHEAD) * WIDTH + j * LANES);
            right[j] = *(const vec*)(b + k * WIDTH + j * LANES);
        }
        for (int i = 0; i < TILE_M; ++i)
            for (int j = 0; j < TILE_N; ++j)
                sum[i][j] += a[i * DEPTH + k] * right[j];
    }
    if (rows == TILE_M && cols == WIDTH) {
        for (int i = 0; i < TILE_M; ++i)
            for (int j = 0; j < TILE_N; ++j) {
                vec* place = (vec*)(out + i * pitch + j * LANES);
                *place = first ? sum[i][j] : *place + sum[i][j];
            }
        return;
    }
    float part[TILE_M][WIDTH];
    memcpy(part, sum, sizeof part);
    for (int i = 0; i < rows; ++i)
        for (int j = 0; j < cols; ++j)
            out[i * pitch + j] = first ? part[i][j] : out[i * pitch + j] + part[i][j];
}

// A row of b to the same row of each panel, zeros behind its end: to[panel][DEPTH][WIDTH].
static void pack(const float* b, int64_t N, float* to) {
    for (int64_t left = 0; left < N; left += WIDTH, to += DEPTH * WIDTH) {
        const int64_t cols = std::min<int64_t>(WIDTH, N - left);
        std::copy_n(b + left, cols, to);
        std::fill_n(to + cols, WIDTH - cols, 0.0f);
    }
}

void multiply(const torch::Tensor& left, const torch::Tensor& right, const torch::Tensor& product) {
    const int64_t M = left.size(0), K = left.size(1), N = right.size(1), panels = (N + WIDTH - 1) / WIDTH;
    const float *a = left.data_ptr<float>(), *b = right.data_ptr<float>();
    float* out = product.data_ptr<float>();
    static thread_local torch::Tensor memory;  // kept: fresh memory costs a page fault for every 4 KiB
    if (!memory.defined() || memory.numel() < panels * DEPTH * WIDTH)
        memory = at::empty({panels * DEPTH * WIDTH});
    float* packed = memory.data_ptr<float>();
    #pragma omp parallel
    for (int64_t start = 0; start < K; start += DEPTH) {
        const int depth = std::min<int64_t>(DEPTH, K - start);
        #pragma omp for schedule(dynamic, 16)
        for (int k = 0; k < depth; ++k)
            pack(b + (start + k) * N, N, packed + k * WIDTH);
        #pragma omp for collapse(2) schedule(dynamic, 2)
        for (int64_t group = 0; group < panels; group += PANELS)
            for (int64_t top = 0; top < M; top += TILE_M) {
                const int rows = std::min<int64_t>(TILE_M, M - top);
                float copy[TILE_M * DEPTH];
                for (int i = 0; i < TILE_M; ++i)  // behind the last row that one again
                    std::copy_n(a + (top + std::min(i, rows - 1)) * K + start, depth, copy + i * DEPTH);
                for (int64_t panel = group; panel < std::min(group + PANELS, panels); ++panel)
                    tile(copy, packed + panel * DEPTH * WIDTH, depth, out + top * N + panel * WIDTH, N, rows,
                         std::min<int64_t>(WIDTH, N - panel * WIDTH), start == 0);
            }
    }
}
"""
LIBRARY = load_inline(
    "matmul_cpp",
    SOURCE,
    functions=["multiply"],
    extra_cflags=["-O3", "-march=native", "-fopenmp"],
)


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a [M, K] times b [K, N], both float32."""
    if a.dtype != torch.float32 or b.dtype != torch.float32:
        raise TypeError(f"matmul of {a.dtype} and {b.dtype}; both must be float32")
    (m, k), n = a.shape, b.shape[1]
    if m * n * k == 0:
        return torch.zeros((m, n))
    out = torch.empty((m, n))
    LIBRARY.multiply(a.contiguous(), b.contiguous(), out)
    return out


class ModelNew(torch.nn.Module):
    """A module whose forward is `matmul`."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """The matrix product."""
        return matmul(a, b)
