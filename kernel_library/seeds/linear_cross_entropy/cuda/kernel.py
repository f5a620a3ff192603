import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CLUSTER = 2


def multiply(n):
    """The wgmma instruction of n columns; keep = 0 overwrites the accumulators."""
    r = n // 2
    registers = ", ".join(f"%{i}" for i in range(r))
    operands = ", ".join(f'"+f"(d[{i}])' for i in range(r))
    return f'''
template <>
__device__ __forceinline__ void multiply<{n}>(float (&d)[{r}], uint64_t a, uint64_t b, int keep) {{
    asm volatile(
        "{{ .reg .pred p; setp.ne.b32 p, %{r + 2}, 0; "
        "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{registers}}}, %{r}, %{r + 1}, p, 1, 1, 0, 0; }}"
        : {operands}
        : "l"(a), "l"(b), "r"(keep));
}}
'''


header = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

// A block computes 256 rows and 192 columns; the blocks of a cluster share the rows and have different columns.
constexpr int BM = 256, BN = 192, BK = 64, STAGES = 4, THREADS = 384;
constexpr uint32_t A_BYTES = BM * BK * 2;
constexpr uint32_t B_BYTES = BN * BK * 2;
constexpr uint32_t STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SMEM = STAGES * (BM + BN) * BK * 2 + 1024 + 2 * STAGES * 8;
constexpr float LOG2E = 1.4426950408889634f;

#define CLUSTER_DIMS __cluster_dims__(CLUSTER, 1, 1)

__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "WAIT_AGAIN:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra WAIT_DONE;\n"
        "bra WAIT_AGAIN;\n"
        "WAIT_DONE:\n"
        "}\n" :: "r"(bar), "r"(parity) : "memory");
}

// One arrival of this warpgroup at the barrier, in every block of the cluster.
__device__ __forceinline__ void release(uint32_t bar) {
    const uint32_t t = threadIdx.x & 127;
#if CLUSTER > 1
    if (t < CLUSTER) {
        asm volatile(
            "{\n"
            ".reg .b32 remote;\n"
            "mapa.shared::cluster.u32 remote, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [remote];\n"
            "}\n" :: "r"(bar), "r"(t) : "memory");
    }
#else
    if (t == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
#endif
}

__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap* map, uint32_t bar, int c0, int c1) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];"
        :: "r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(c0), "r"(c1) : "memory");
}

#if CLUSTER > 1
__device__ __forceinline__ void tma_multicast(uint32_t to, const CUtensorMap* map, uint32_t bar, int c0, int c1) {
    const uint16_t mask = (1 << CLUSTER) - 1;
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%4, %5}], [%2], %3;"
        :: "r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "h"(mask), "r"(c0), "r"(c1) : "memory");
}
#endif

// All threads of the block (or cluster) meet.
__device__ __forceinline__ void meet() {
    __syncwarp();
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
#else
    __syncthreads();
#endif
}

// Shared memory descriptor: rows of 128 bytes, contiguous along k, 128-byte swizzle, 1024 bytes per 8 rows.
__device__ __forceinline__ uint64_t descriptor(uint32_t at) {
    return (uint64_t)((at & 0x3FFFF) >> 4) | ((uint64_t)1 << 16) | ((uint64_t)64 << 32) | ((uint64_t)1 << 62);
}

template <int N>
__device__ __forceinline__ void multiply(float (&d)[N / 2], uint64_t a, uint64_t b, int keep);
"""

source = r"""
// The products of the rows cw * 128 to cw * 128 + 63 (d0) and + 64 to + 127 (d1) with all columns of the tile.
__device__ __forceinline__ void mainloop(
    float (&d0)[BN / 2], float (&d1)[BN / 2], uint32_t base, uint32_t full, uint32_t empty, int cw, int blocks_k,
    int& stage, uint32_t& phase) {
    int previous = 0;
    #pragma unroll 1
    for (int kb = 0; kb < blocks_k; ++kb) {
        barrier_wait(full + 8 * stage, phase);
        const uint32_t at = base + stage * STAGE_BYTES;
        const uint64_t a = descriptor(at + cw * (128 * BK * 2));
        const uint64_t b = descriptor(at + A_BYTES);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        #pragma unroll
        for (int k = 0; k < BK / 16; ++k) {
            multiply<BN>(d0, a + 2 * k, b + 2 * k, (kb | k) != 0);
            multiply<BN>(d1, a + 2 * k + (64 * BK * 2 >> 4), b + 2 * k, (kb | k) != 0);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
        if (kb > 0) release(empty + 8 * previous);
        previous = stage;
        if (++stage == STAGES) { stage = 0; phase ^= 1; }
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    #pragma unroll
    for (int i = 0; i < BN / 2; ++i) asm volatile("" : "+f"(d0[i]), "+f"(d1[i]) :: "memory");
    release(empty + 8 * previous);
}

__device__ __forceinline__ float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Columns from vocab on do not exist.
template <int N>
__device__ __forceinline__ void hide(float (&d)[N / 2], int n0, int vocab) {
    const int c = n0 + 2 * (threadIdx.x & 3);
    #pragma unroll
    for (int i = 0; i < N / 2; ++i) {
        if (c + 8 * (i >> 2) + (i & 1) >= vocab) d[i] = -INFINITY;
    }
}

// Maximum, sum of exponentials and target's logit of the rows row and row + 8 over the N columns from n0.
template <int N>
__device__ __forceinline__ void statistics(
    const float (&d)[N / 2], int row, int n0, int rows, int t0, int t1,
    float2* __restrict__ part, float* __restrict__ picked) {
    const int q = 2 * (threadIdx.x & 3);
    float m0 = -INFINITY, m1 = -INFINITY;
    #pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        m0 = fmaxf(m0, fmaxf(d[4 * j], d[4 * j + 1]));
        m1 = fmaxf(m1, fmaxf(d[4 * j + 2], d[4 * j + 3]));
    }
    m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 1));
    m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, 1));
    m0 = fmaxf(m0, __shfl_xor_sync(0xffffffffu, m0, 2));
    m1 = fmaxf(m1, __shfl_xor_sync(0xffffffffu, m1, 2));
    const float z0 = m0 == -INFINITY ? 0.f : m0;
    const float z1 = m1 == -INFINITY ? 0.f : m1;
    float s0 = 0.f, s1 = 0.f, u0 = 0.f, u1 = 0.f;
    #pragma unroll
    for (int j = 0; j < N / 8; ++j) {
        s0 += power((d[4 * j] - z0) * LOG2E);
        u0 += power((d[4 * j + 1] - z0) * LOG2E);
        s1 += power((d[4 * j + 2] - z1) * LOG2E);
        u1 += power((d[4 * j + 3] - z1) * LOG2E);
    }
    s0 += u0;
    s1 += u1;
    s0 += __shfl_xor_sync(0xffffffffu, s0, 1);
    s1 += __shfl_xor_sync(0xffffffffu, s1, 1);
    s0 += __shfl_xor_sync(0xffffffffu, s0, 2);
    s1 += __shfl_xor_sync(0xffffffffu, s1, 2);

    const int c0 = t0 - n0, c1 = t1 - n0;
    const bool in0 = (unsigned)c0 < (unsigned)N, in1 = (unsigned)c1 < (unsigned)N;
    if (__any_sync(0xffffffffu, in0 || in1)) {
        float v0 = 0.f, v1 = 0.f;
        #pragma unroll
        for (int j = 0; j < N / 8; ++j) {
            #pragma unroll
            for (int e = 0; e < 2; ++e) {
                const int col = 8 * j + q + e;
                if (col == c0) v0 = d[4 * j + e];
                if (col == c1) v1 = d[4 * j + 2 + e];
            }
        }
        if (in0 && (c0 & 6) == q) picked[row] = v0;
        if (in1 && (c1 & 6) == q) picked[row + 8] = v1;
    }
    if (q == 0) {
        if (row < rows) part[row] = make_float2(m0, s0);
        if (row + 8 < rows) part[row + 8] = make_float2(m1, s1);
    }
}

__device__ __forceinline__ void merge(float& m, float& s, float2 p) {
    const float top = fmaxf(m, p.x);
    const float z = top == -INFINITY ? 0.f : top;
    s = s * power((m - z) * LOG2E) + p.y * power((p.x - z) * LOG2E);
    m = top;
}

__global__ void CLUSTER_DIMS __launch_bounds__(THREADS, 1) logits(
    const __grid_constant__ CUtensorMap xs, const __grid_constant__ CUtensorMap ws,
    const int64_t* __restrict__ target, float2* __restrict__ part, float* __restrict__ picked,
    int rows, int vocab, int blocks_k, int groups_m, int tiles) {
    extern __shared__ uint8_t raw[];
    const uint32_t base = ((uint32_t)__cvta_generic_to_shared(raw) + 1023u) & ~1023u;
    const uint32_t full = base + STAGES * STAGE_BYTES;
    const uint32_t empty = full + 8 * STAGES;
    const int wg = threadIdx.x >> 7;
    const int rank = blockIdx.x % CLUSTER;
    const int first = blockIdx.x / CLUSTER, step = gridDim.x / CLUSTER;

    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(full + 8 * i, 1);
            barrier_init(empty + 8 * i, 2 * CLUSTER);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    meet();

    if (wg == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (threadIdx.x == 0) {
            int stage = 0;
            uint32_t phase = 0;
            for (int tile = first; tile < tiles; tile += step) {
                const int n = tile / groups_m;
                const int x0 = (tile - n * groups_m) * BM + rank * (BM / CLUSTER);
                const int w0 = (n * CLUSTER + rank) * BN;
                #pragma unroll 1
                for (int kb = 0; kb < blocks_k; ++kb) {
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    const uint32_t at = base + stage * STAGE_BYTES, bar = full + 8 * stage;
                    barrier_expect(bar, STAGE_BYTES);
                    tma_multicast(at + rank * (A_BYTES / CLUSTER), &xs, bar, kb * BK, x0);
                    tma_load(at + A_BYTES, &ws, bar, kb * BK, w0);
                    if (++stage == STAGES) { stage = 0; phase ^= 1; }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        const int cw = wg - 1;
        int stage = 0;
        uint32_t phase = 0;
        for (int tile = first; tile < tiles; tile += step) {
            const int n = tile / groups_m;
            const int m = tile - n * groups_m;
            const int n0 = (n * CLUSTER + rank) * BN;
            const int row = m * BM + cw * 128 + ((threadIdx.x >> 5) & 3) * 16 + ((threadIdx.x & 31) >> 2);
            float2* to = part + (size_t)(n * CLUSTER + rank) * rows;
            float d0[BN / 2], d1[BN / 2];
            mainloop(d0, d1, base, full, empty, cw, blocks_k, stage, phase);
            if (n0 + BN > vocab) {
                hide<BN>(d0, n0, vocab);
                hide<BN>(d1, n0, vocab);
            }
            int t0 = row < rows ? (int)target[row] : -1;
            int t1 = row + 8 < rows ? (int)target[row + 8] : -1;
            statistics<BN>(d0, row, n0, rows, t0, t1, to, picked);
            t0 = row + 64 < rows ? (int)target[row + 64] : -1;
            t1 = row + 72 < rows ? (int)target[row + 72] : -1;
            statistics<BN>(d1, row + 64, n0, rows, t0, t1, to, picked);
        }
    }
    // no block leaves while another one of its cluster may still write to it
    meet();
}

// Merges the pairs of each row; 32 rows per block, 8 threads per row.
__global__ void __launch_bounds__(256) combine(
    const float2* __restrict__ part, const float* __restrict__ picked, const int64_t* __restrict__ target,
    float* __restrict__ out, int rows, int slots) {
    __shared__ float2 pairs[8][32];
    const int lane = threadIdx.x & 31, group = threadIdx.x >> 5;
    const int row = blockIdx.x * 32 + lane;
    float m = -INFINITY, s = 0.f;
    if (row < rows) {
        #pragma unroll 8
        for (int i = group; i < slots; i += 8) merge(m, s, part[(size_t)i * rows + row]);
    }
    pairs[group][lane] = make_float2(m, s);
    __syncthreads();
    if (group == 0 && row < rows) {
        #pragma unroll
        for (int g = 1; g < 8; ++g) merge(m, s, pairs[g][lane]);
        out[row] = target[row] == -100 ? 0.f : (m - picked[row]) + logf(s);
    }
}

typedef CUresult (*Encode)(
    CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
    const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode encoder() {
    void* f = nullptr;
#if CUDART_VERSION >= 12050
    C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault));
#else
    C10_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault));
#endif
    TORCH_CHECK(f != nullptr, "cuTensorMapEncodeTiled was not found");
    return reinterpret_cast<Encode>(f);
}

// A map of a row-major matrix of n rows and k columns, in boxes of box rows and BK columns.
static CUtensorMap make_map(void* data, int64_t n, int64_t k, int box) {
    static const Encode encode = encoder();
    CUtensorMap map;
    const cuuint64_t sizes[2] = {(cuuint64_t)k, (cuuint64_t)n};
    const cuuint64_t strides[1] = {(cuuint64_t)k * 2};
    const cuuint32_t boxes[2] = {(cuuint32_t)BK, (cuuint32_t)box};
    const cuuint32_t steps[2] = {1, 1};
    const CUresult result = encode(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, data, sizes, strides, boxes, steps,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TORCH_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed");
    return map;
}

torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor target) {
    const int64_t rows = x.size(0), k = x.size(1), vocab = w.size(0);
    const auto options = x.options().dtype(at::kFloat);
    auto out = at::empty({rows}, options);
    if (rows == 0) return out;
    const int groups_m = (int)((rows + BM - 1) / BM);
    const int64_t groups_n = (vocab + BN * CLUSTER - 1) / (BN * CLUSTER);
    const int64_t columns = groups_n * CLUSTER;
    const int tiles = groups_m * (int)groups_n;
    const int64_t two = 2;
    auto part = at::empty({columns, rows, two}, options);
    auto picked = at::empty({rows}, options);
    const CUtensorMap xs = make_map(x.data_ptr(), rows, k, BM / CLUSTER);
    const CUtensorMap ws = make_map(w.data_ptr(), vocab, k, BN);
    static const cudaError_t ready =
        cudaFuncSetAttribute(logits, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM);
    C10_CUDA_CHECK(ready);
    const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int grid = std::min(tiles, processors / CLUSTER) * CLUSTER;
    const auto stream = at::cuda::getCurrentCUDAStream();
    float2* pairs = reinterpret_cast<float2*>(part.data_ptr<float>());
    logits<<<grid, THREADS, SMEM, stream>>>(
        xs, ws, target.data_ptr<int64_t>(), pairs, picked.data_ptr<float>(), (int)rows, (int)vocab,
        (int)((k + BK - 1) / BK), groups_m, tiles);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    combine<<<(unsigned)((rows + 31) / 32), 256, 0, stream>>>(
        pairs, picked.data_ptr<float>(), target.data_ptr<int64_t>(), out.data_ptr<float>(), (int)rows, (int)columns);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return out;
}
"""

extension = load_inline(
    name="linear_cross_entropy_256x192_producer",
    cpp_sources="torch::Tensor run(torch::Tensor x, torch::Tensor w, torch::Tensor target);",
    cuda_sources=header + multiply(192) + source,
    functions=["run"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a", f"-DCLUSTER={CLUSTER}"],
)


def aligned(t):
    """Rows that TMA can load: contiguous, beginning at a multiple of 16 bytes."""
    t = t.contiguous()
    k = t.shape[1]
    if k % 8:
        padded = t.new_zeros((t.shape[0], (k + 7) // 8 * 8))
        padded[:, :k].copy_(t)
        return padded
    return t.clone() if t.data_ptr() % 16 else t


class ModelNew(nn.Module):
    def __init__(self, features: int, vocabulary: int):
        super().__init__()
        self.head = nn.Linear(features, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        w = self.head.weight.detach()
        y = extension.run(aligned(x.reshape(-1, w.shape[1])), aligned(w), target.contiguous())
        return y.view(target.shape)


def linear_cross_entropy(
    x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor, ignore_index: int = -100
) -> torch.Tensor:
    """The loss of each row in float32."""
    if ignore_index != -100:
        target = target.masked_fill(target == ignore_index, -100)
    return extension.run(aligned(x), aligned(weight), target.contiguous())
