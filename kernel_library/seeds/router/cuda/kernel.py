import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

MIN_BLOCKS = 10
CONFIGS = {"MIN_BLOCKS": [8, 10, 12]}

cuda_source = """
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <vector>

constexpr unsigned FULL = 0xffffffffu;

// Unsigned integers in the order of the floats, NaN largest; never 0.
__device__ __forceinline__ unsigned ordered(float x) {
    const int b = __float_as_int(x);
    const unsigned u = b < 0 ? ~(unsigned)b : (unsigned)b | 0x80000000u;
    return x != x ? 0xffffffffu : u;
}

// Any shape: a warp per row, repeatedly the largest key (value, then lowest number) below the last one.
__global__ void __launch_bounds__(128) any_shape(const float* __restrict__ logits, float* weights, int64_t* numbers,
                                                 long rows, int experts, int chosen) {
    const int lane = threadIdx.x & 31;
    const long row = blockIdx.x * 4L + (threadIdx.x >> 5);
    if (row >= rows) return;
    const float* x = logits + row * experts;
    float* w = weights + row * chosen;
    int64_t* n = numbers + row * chosen;
    unsigned long long last = ~0ull;
    float top = 0.0f, sum = 0.0f;
    for (int k = 0; k < chosen; ++k) {
        unsigned long long best = 0;
        for (int col = lane; col < experts; col += 32) {
            const unsigned long long key = ((unsigned long long)ordered(x[col]) << 32) | (unsigned)(0x7fffffff - col);
            if (key < last && key > best) best = key;
        }
        #pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            const unsigned long long other = __shfl_xor_sync(FULL, best, d);
            if (other > best) best = other;
        }
        last = best;
        const int number = 0x7fffffff - (int)(unsigned)(best & 0xffffffffull);
        const float v = x[number];
        if (k == 0) top = v;
        const float e = expf(v - top);
        sum += e;
        if (lane == 0) {
            w[k] = e;
            n[k] = number;
        }
    }
    __syncwarp();
    for (int k = lane; k < chosen; k += 32) w[k] = w[k] / sum;
}

// The 8 largest of a row of 128, exactly, by a whole warp: lane r < 8 returns the number of rank r. NaN comes first.
__device__ __forceinline__ int exact8(const float* row, int lane) {
    const float4 v = reinterpret_cast<const float4*>(row)[lane];
    unsigned o0 = ordered(v.x), o1 = ordered(v.y), o2 = ordered(v.z), o3 = ordered(v.w);
    const unsigned first = 4u * lane;
    int mine = 0;
    #pragma unroll 1
    for (int r = 0; r < 8; ++r) {
        const unsigned largest = __reduce_max_sync(FULL, max(max(o0, o1), max(o2, o3)));
        unsigned candidate = 0xffffu;
        if (o3 == largest) candidate = first + 3;
        if (o2 == largest) candidate = first + 2;
        if (o1 == largest) candidate = first + 1;
        if (o0 == largest) candidate = first;
        const unsigned number = __reduce_min_sync(FULL, candidate);
        if (number == first) o0 = 0;
        if (number == first + 1) o1 = 0;
        if (number == first + 2) o2 = 0;
        if (number == first + 3) o3 = 0;
        if (lane == r) mine = (int)number;
    }
    return mine;
}

// Networks on floats, descending.
__device__ __forceinline__ void order(float& a, float& b) {
    const float larger = fmaxf(a, b);
    b = fminf(a, b);
    a = larger;
}

__device__ __forceinline__ void sort4(float& a, float& b, float& c, float& d) {
    order(a, b); order(c, d); order(a, c); order(b, d); order(b, c);
}

__device__ __forceinline__ void bitonic4(float& a, float& b, float& c, float& d) {
    order(a, c); order(b, d); order(a, b); order(c, d);
}

__device__ __forceinline__ void bitonic8(float (&v)[8]) {
    order(v[0], v[4]); order(v[1], v[5]); order(v[2], v[6]); order(v[3], v[7]);
    bitonic4(v[0], v[1], v[2], v[3]);
    bitonic4(v[4], v[5], v[6], v[7]);
}

// A key is the logit with a number in its low 7 bits: its bucket, the values that agree in the other 25 bits, orders it.
__device__ __forceinline__ float key_of(float x, int number) {
    return __int_as_float((__float_as_int(x) & ~127) | number);
}

__device__ __forceinline__ float bucket_floor(float key) {
    const int b = __float_as_int(key);
    return __int_as_float(b < 0 ? (b | 127) : (b & ~127));
}

// Exchange with lane ^ mask: lanes with minus == -1 keep the larger of the two keys, those with +1 the smaller.
// (min(a, b) = -max(-a, -b); the products by 1 and -1 are exact and leave the min/max pipe free.)
template <bool REVERSED>
__device__ __forceinline__ void split(float (&v)[4], float minus, int mask) {
    float t[4], o[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) t[i] = v[i] * minus;
    #pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = __shfl_xor_sync(FULL, t[REVERSED ? 3 - i : i], mask);
    #pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = fmaxf(-t[i], o[i]) * -minus;
}

// Two lane pairs with 8 sorted keys each (even lane: the upper 4, odd lane: the lower 4): both get the best 8, sorted.
__device__ __forceinline__ void merge_pairs(float (&v)[4], float minus, int mask) {
    float o[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) o[i] = __shfl_xor_sync(FULL, v[3 - i], mask | 1);
    #pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = fmaxf(v[i], o[i]);
    split<false>(v, minus, 1);
    bitonic4(v[0], v[1], v[2], v[3]);
}

// 1.0 if x >= y, else 0.0
__device__ __forceinline__ float at_least(float x, float y) {
    float r;
    asm("set.ge.f32.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y));
    return r;
}

constexpr int THREADS = 128;

// The best 4 of two sorted lists of 4, sorted, in a.
__device__ __forceinline__ void merge4(float (&a)[4], const float (&b)[4]) {
    #pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = fmaxf(a[i], b[3 - i]);
    bitonic4(a[0], a[1], a[2], a[3]);
}

// 8 of 128: 8 lanes per row, lane j holds the numbers 32 i + 4 j + (0..3). Every lane keeps its best 4.
__global__ void __launch_bounds__(THREADS, MIN_BLOCKS) choose(const float* __restrict__ logits, float* __restrict__ weights,
                                                              int64_t* __restrict__ numbers, long rows) {
    const int lane = threadIdx.x & 31, j = lane & 7;
    const long wanted = (blockIdx.x * (long)THREADS + threadIdx.x) >> 3;
    const bool valid = wanted < rows;
    const long row = valid ? wanted : rows - 1;
    const float* x = logits + row * 128;

    float v[4][4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float4 f = reinterpret_cast<const float4*>(x)[j + 8 * i];
        v[i][0] = f.x; v[i][1] = f.y; v[i][2] = f.z; v[i][3] = f.w;
    }

    float a[4][4], c[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        c[i] = 0.0f;
        #pragma unroll
        for (int k = 0; k < 4; ++k) {
            a[i][k] = key_of(v[i][k], 32 * i + k);
            c[i] = fmaf(v[i][k], 0.0f, c[i]);  // NaN if one is not finite
        }
        sort4(a[i][0], a[i][1], a[i][2], a[i][3]);
    }
    merge4(a[0], a[1]);
    merge4(a[2], a[3]);
    merge4(a[0], a[2]);

    float best[4];
    #pragma unroll
    for (int i = 0; i < 4; ++i) best[i] = __int_as_float(__float_as_int(a[0][i]) | (4 * j));

    const float minus = (j & 1) ? 1.0f : -1.0f;
    split<true>(best, minus, 1);
    bitonic4(best[0], best[1], best[2], best[3]);
    merge_pairs(best, minus, 2);
    merge_pairs(best, minus, 4);

    // Are exactly 8 logits of the row in the buckets down to that of the 8th key, and all finite?
    const float least = bucket_floor(__shfl_sync(FULL, best[3], 1, 8));
    #pragma unroll
    for (int i = 0; i < 4; ++i) {
        #pragma unroll
        for (int k = 0; k < 4; ++k) c[i] += at_least(v[i][k], least);
    }
    float count = (c[0] + c[1]) + (c[2] + c[3]);
    #pragma unroll
    for (int d = 1; d < 8; d <<= 1) count += __shfl_xor_sync(FULL, count, d);

    // Lane j takes rank 4 (j & 1) + (j >> 1).
    const int q = j >> 1;
    const float low = (q & 1) ? best[1] : best[0], high = (q & 1) ? best[3] : best[2];
    int number = __float_as_int((q & 2) ? high : low) & 127;
    int rank = 4 * (j & 1) + q;
    float mine = x[number];
    const int next = rank + 1;
    const int source = rank == 7 ? 7 : ((next >> 2) | ((next & 3) << 1));
    const float following = __shfl_sync(FULL, mine, source, 8);
    const bool ok = count == 8.0f && mine >= following;

    const unsigned good = __ballot_sync(FULL, ok);
    if (good != FULL) {
        #pragma unroll 1
        for (int g = 0; g < 4; ++g) {
            if (((good >> (8 * g)) & 255u) == 255u) continue;
            const float* other = logits + __shfl_sync(FULL, row, 8 * g) * 128;
            const int found = __shfl_sync(FULL, exact8(other, lane), j);
            if ((lane >> 3) == g) {
                number = found;
                rank = j;
                mine = other[found];
            }
        }
    }

    // Rank 0 is in lane 0 of the 8 in both cases.
    const float e = expf(mine - __shfl_sync(FULL, mine, 0, 8));
    float sum = e;
    #pragma unroll
    for (int d = 1; d < 8; d <<= 1) sum += __shfl_xor_sync(FULL, sum, d);
    if (valid) {
        weights[row * 8 + rank] = e / sum;
        numbers[row * 8 + rank] = number;
    }
}

std::vector<torch::Tensor> run(torch::Tensor x, int64_t chosen) {
    const int64_t experts = x.size(-1);
    TORCH_CHECK(chosen >= 0 && chosen <= experts, "chosen is out of range");
    std::vector<int64_t> sizes = x.sizes().vec();
    sizes.back() = chosen;
    auto weights = at::empty(sizes, x.options());
    auto numbers = at::empty(sizes, x.options().dtype(at::kLong));
    if (weights.numel() == 0) return {weights, numbers};
    const long rows = x.numel() / experts;
    const float* in = x.data_ptr<float>();
    float* w = weights.data_ptr<float>();
    int64_t* n = numbers.data_ptr<int64_t>();
    auto stream = at::cuda::getCurrentCUDAStream();
    if (experts == 128 && chosen == 8 && reinterpret_cast<uintptr_t>(in) % 16 == 0) {
        const long blocks = (rows * 8 + THREADS - 1) / THREADS;
        choose<<<blocks, THREADS, 0, stream>>>(in, w, n, rows);
    } else {
        const long blocks = (rows + 3) / 4;
        any_shape<<<blocks, 128, 0, stream>>>(in, w, n, rows, (int)experts, (int)chosen);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {weights, numbers};
}
"""

extension = load_inline(
    name=f"router_pruned_{MIN_BLOCKS}",
    cpp_sources="std::vector<torch::Tensor> run(torch::Tensor x, int64_t chosen);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3", f"-DMIN_BLOCKS={MIN_BLOCKS}"],
)


class ModelNew(nn.Module):
    def __init__(self, chosen: int):
        super().__init__()
        self.chosen = chosen

    def forward(self, logits):
        if logits.dtype != torch.float32:
            logits = logits.to(torch.float32)
        weights, numbers = extension.run(logits.contiguous(), self.chosen)
        return weights, numbers


def router(logits, chosen=8):
    """The weights of the chosen experts of each token, which add up to 1, and their numbers."""
    return tuple(ModelNew(chosen)(logits))
