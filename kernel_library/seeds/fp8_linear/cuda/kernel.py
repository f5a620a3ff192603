import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

TILE_N = 256
STAGES = 4

source = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_fp16.h>
#include <cstdint>

constexpr int BM = 128;
constexpr int BN = TILE_N;
constexpr int NH = BN / 128;                 // halves of 128 columns
constexpr int A_BYTES = BM * 128;
constexpr int B_BYTES = BN * 128;
constexpr int STAGE_BYTES = A_BYTES + B_BYTES;
constexpr int SMEM_BYTES = 1024 + STAGES * STAGE_BYTES + 16 * STAGES;
constexpr int GROUP = 16;

__device__ __forceinline__ uint32_t smem_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ __forceinline__ void barrier_init(uint32_t bar, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ uint64_t keep_policy() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ void tma_load(uint32_t to, const CUtensorMap* map, uint32_t bar, int k, int row, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4}], [%2], %5;"
                 :: "r"(to), "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(k), "r"(row), "l"(policy) : "memory");
}
// K-major tile with rows of 128 bytes, 128-byte swizzle, 1024 bytes between groups of 8 rows
__device__ __forceinline__ uint64_t descriptor(uint32_t address) {
    return (static_cast<uint64_t>(1) << 62) | (static_cast<uint64_t>(64) << 32) | (static_cast<uint64_t>(1) << 16) |
           static_cast<uint64_t>((address & 0x3FFFF) >> 4);
}
__device__ __forceinline__ void wgmma(float (&d)[64], uint64_t a, uint64_t b, int keep) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; "
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {@REGISTERS@}, %64, %65, p, 1, 1; }"
                 : @OPERANDS@
                 : "l"(a), "l"(b), "r"(keep));
}
__device__ __forceinline__ void pin(float (&d)[64]) {
#pragma unroll
    for (int i = 0; i < 64; i++) asm volatile("" : "+f"(d[i]) :: "memory");
}
__device__ __forceinline__ bool odd_scale(float s) {
    const float a = fabsf(s);
    return a > 35184372088832.0f || (a < 8.673617379884035e-19f && a != 0.0f);  // 2^45, 2^-60
}
__device__ __forceinline__ uint32_t pack(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
__device__ __forceinline__ float2 decode(uint32_t two) {
    uint32_t h;
    const uint16_t v = static_cast<uint16_t>(two);
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(v));
    return __half22float2(*reinterpret_cast<const __half2*>(&h));
}
__device__ __forceinline__ void tile_at(int tile, int tiles_m, int tiles_n, int& m, int& n) {
    const int per_group = GROUP * tiles_n;
    const int group = tile / per_group;
    const int first = group * GROUP;
    const int size = min(tiles_m - first, GROUP);
    const int rest = tile - group * per_group;
    m = first + rest % size;
    n = rest / size;
}

__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1) fp8_linear_kernel(
    const __grid_constant__ CUtensorMap x_map, const __grid_constant__ CUtensorMap w_map,
    const uint8_t* __restrict__ x, const float* __restrict__ xs, const uint8_t* __restrict__ w,
    const float* __restrict__ ws, uint16_t* __restrict__ y, int M, int N, int K) {
    extern __shared__ uint8_t raw[];
    const uint32_t base = (smem_address(raw) + 1023u) & ~1023u;
    const uint32_t full = base + STAGES * STAGE_BYTES;
    const uint32_t empty = full + 8 * STAGES;
    const int kg = K / 128;
    const int tiles_m = (M + BM - 1) / BM;
    const int tiles_n = (N + BN - 1) / BN;
    const int tiles = tiles_m * tiles_n;

    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; s++) {
            barrier_init(full + 8 * s, 1);
            barrier_init(empty + 8 * s, 8);  // one arrival of each consumer warp
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    __syncthreads();

    int stage = 0;
    const int start = static_cast<int>((blockIdx.x / 2) % static_cast<unsigned>(max(kg, 1)));  // where this block begins in k
    uint32_t phase = 0;
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            const uint64_t policy = keep_policy();
            for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
                int m, n;
                tile_at(tile, tiles_m, tiles_n, m, n);
                int k = start;
                for (int g = 0; g < kg; g++) {
                    const uint32_t to = base + stage * STAGE_BYTES;
                    const uint32_t bar = full + 8 * stage;
                    barrier_wait(empty + 8 * stage, phase ^ 1);
                    barrier_expect(bar, STAGE_BYTES);  // rows beyond the edge arrive as zeros and count too
                    tma_load(to, &x_map, bar, k * 128, m * BM, policy);
                    tma_load(to + A_BYTES, &w_map, bar, k * 128, n * BN, policy);
                    if (++k == kg) k = 0;
                    if (++stage == STAGES) {
                        stage = 0;
                        phase ^= 1;
                    }
                }
            }
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int group = threadIdx.x / 128 - 1;
        const int warp = (threadIdx.x / 32) % 4;
        const int lane = threadIdx.x % 32;
        const int quad = lane % 4;
        float d[64];
#pragma unroll
        for (int i = 0; i < 64; i++) d[i] = 0.0f;

        for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
            int m, n;
            tile_at(tile, tiles_m, tiles_n, m, n);
            float acc[NH][64];
#pragma unroll
            for (int h = 0; h < NH; h++)
#pragma unroll
                for (int i = 0; i < 64; i++) acc[h][i] = 0.0f;

            const int first_row = m * BM + group * 64 + warp * 16;
            const int row0 = first_row + lane / 4;
            const int row1 = row0 + 8;
            const float* xs0 = xs + static_cast<int64_t>(min(row0, M - 1)) * kg;
            const float* xs1 = xs + static_cast<int64_t>(min(row1, M - 1)) * kg;
            const float* wsh[NH];
            float s0 = __ldg(xs0 + start), s1 = __ldg(xs1 + start), u[NH];
#pragma unroll
            for (int h = 0; h < NH; h++) {
                wsh[h] = ws + static_cast<int64_t>(min(n * NH + h, N / 128 - 1)) * kg;
                u[h] = __ldg(wsh[h] + start);
            }
            bool bad = false;

            int next = start;
            for (int g = 0; g < kg; g++) {
                float s0_next = 0.0f, s1_next = 0.0f, u_next[NH];
                barrier_wait(full + 8 * stage, phase);
                const uint32_t at = base + stage * STAGE_BYTES;
                const uint64_t a = descriptor(at + group * 8192);
#pragma unroll
                for (int h = 0; h < NH; h++) {
                    const uint64_t b = descriptor(at + A_BYTES + h * 16384);
                    pin(d);
                    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
                    wgmma(d, a, b, 0);
                    wgmma(d, a + 2, b + 2, 1);
                    wgmma(d, a + 4, b + 4, 1);
                    wgmma(d, a + 6, b + 6, 1);
                    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
                    if (h == 0) {
                        // the scales of the next 128 k, while the tensor cores work
                        if (++next == kg) next = 0;
                        s0_next = __ldg(xs0 + next);
                        s1_next = __ldg(xs1 + next);
#pragma unroll
                        for (int j = 0; j < NH; j++) {
                            u_next[j] = __ldg(wsh[j] + next);
                            bad |= odd_scale(u[j]);
                        }
                        bad |= odd_scale(s0) | odd_scale(s1);
                    }
                    const float f0 = s0 * u[h];
                    const float f1 = s1 * u[h];
                    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
                    pin(d);
                    if (h == NH - 1 && lane == 0) barrier_arrive(empty + 8 * stage);
#pragma unroll
                    for (int i = 0; i < 64; i += 4) {
                        acc[h][i] = fmaf(d[i], f0, acc[h][i]);
                        acc[h][i + 1] = fmaf(d[i + 1], f0, acc[h][i + 1]);
                        acc[h][i + 2] = fmaf(d[i + 2], f1, acc[h][i + 2]);
                        acc[h][i + 3] = fmaf(d[i + 3], f1, acc[h][i + 3]);
                    }
                }
                s0 = s0_next;
                s1 = s1_next;
#pragma unroll
                for (int h = 0; h < NH; h++) u[h] = u_next[h];
                if (++stage == STAGES) {
                    stage = 0;
                    phase ^= 1;
                }
            }

            if (__any_sync(0xffffffffu, bad)) {
                // rare: infinite, huge or tiny scales. The 16 rows of this warp in float32, multiplied in the
                // reference's order.
#pragma unroll 1
                for (int r = 0; r < 16; r++) {
                    const int64_t row = first_row + r;
                    if (row >= M) break;
#pragma unroll 1
                    for (int c = lane; c < BN; c += 32) {
                        const int64_t col = static_cast<int64_t>(n) * BN + c;
                        if (col >= N) break;
                        const uint8_t* px = x + row * K;
                        const uint8_t* pw = w + col * K;
                        float sum = 0.0f;
#pragma unroll 1
                        for (int g = 0; g < kg; g++) {
                            const float sx = xs[row * kg + g];
                            const float sw = ws[(col / 128) * kg + g];
#pragma unroll 1
                            for (int k = 0; k < 128; k += 16) {
                                const uint4 vx = *reinterpret_cast<const uint4*>(px + g * 128 + k);
                                const uint4 vw = *reinterpret_cast<const uint4*>(pw + g * 128 + k);
                                const uint32_t ax[4] = {vx.x, vx.y, vx.z, vx.w};
                                const uint32_t aw[4] = {vw.x, vw.y, vw.z, vw.w};
#pragma unroll
                                for (int i = 0; i < 4; i++) {
                                    const float2 x0 = decode(ax[i] & 0xffffu), x1 = decode(ax[i] >> 16);
                                    const float2 w0 = decode(aw[i] & 0xffffu), w1 = decode(aw[i] >> 16);
                                    sum = fmaf(x0.x * sx, w0.x * sw, sum);
                                    sum = fmaf(x0.y * sx, w0.y * sw, sum);
                                    sum = fmaf(x1.x * sx, w1.x * sw, sum);
                                    sum = fmaf(x1.y * sx, w1.y * sw, sum);
                                }
                            }
                        }
                        y[row * N + col] = static_cast<uint16_t>(pack(sum, 0.0f) & 0xffffu);
                    }
                }
            } else {
                // the four threads of a row exchange columns, so that each writes 8 adjacent ones
#pragma unroll
                for (int h = 0; h < NH; h++) {
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        const int col = n * BN + h * 128 + (4 * j + quad) * 8;
#pragma unroll
                        for (int r = 0; r < 2; r++) {
                            uint32_t v0 = pack(acc[h][16 * j + 2 * r], acc[h][16 * j + 2 * r + 1]);
                            uint32_t v1 = pack(acc[h][16 * j + 4 + 2 * r], acc[h][16 * j + 5 + 2 * r]);
                            uint32_t v2 = pack(acc[h][16 * j + 8 + 2 * r], acc[h][16 * j + 9 + 2 * r]);
                            uint32_t v3 = pack(acc[h][16 * j + 12 + 2 * r], acc[h][16 * j + 13 + 2 * r]);
                            const bool odd = quad & 1, high = quad & 2;
                            uint32_t got = __shfl_xor_sync(0xffffffffu, odd ? v0 : v1, 1);
                            if (odd) v0 = got; else v1 = got;
                            got = __shfl_xor_sync(0xffffffffu, odd ? v2 : v3, 1);
                            if (odd) v2 = got; else v3 = got;
                            got = __shfl_xor_sync(0xffffffffu, high ? v0 : v2, 2);
                            if (high) v0 = got; else v2 = got;
                            got = __shfl_xor_sync(0xffffffffu, high ? v1 : v3, 2);
                            if (high) v1 = got; else v3 = got;
                            const int row = r ? row1 : row0;
                            if (row < M && col < N)
                                __stcs(reinterpret_cast<uint4*>(y + static_cast<int64_t>(row) * N + col),
                                       make_uint4(v0, v1, v2, v3));
                        }
                    }
                }
            }
        }
    }
}

typedef CUresult (*EncodeFunction)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeFunction find_encode() {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 12050
    C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &result));
#else
    C10_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &result));
#endif
    TORCH_CHECK(f != nullptr, "no cuTensorMapEncodeTiled");
    return reinterpret_cast<EncodeFunction>(f);
}

static CUtensorMap make_map(void* data, int64_t rows, int64_t k, int box_rows) {
    static EncodeFunction encode = find_encode();
    CUtensorMap map;
    const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
    const cuuint64_t strides[1] = {static_cast<cuuint64_t>(k)};
    const cuuint32_t box[2] = {128u, static_cast<cuuint32_t>(box_rows)};
    const cuuint32_t steps[2] = {1u, 1u};
    const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, data, sizes, strides, box, steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TORCH_CHECK(r == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed: ", static_cast<int>(r));
    return map;
}

torch::Tensor run(torch::Tensor x, torch::Tensor xs, torch::Tensor w, torch::Tensor ws) {
    const int64_t M = x.size(0), K = x.size(1), N = w.size(0);
    auto y = at::empty({M, N}, x.options().dtype(at::kBFloat16));
    if (M == 0 || N == 0) return y;
    if (K == 0) {
        y.zero_();
        return y;
    }
    TORCH_CHECK(K % 128 == 0 && N % 128 == 0, "features must be multiples of 128");
    const CUtensorMap x_map = make_map(x.data_ptr(), M, K, BM);
    const CUtensorMap w_map = make_map(w.data_ptr(), N, K, BN);
    static const bool ready = [] {
        C10_CUDA_CHECK(cudaFuncSetAttribute(fp8_linear_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
        return true;
    }();
    (void)ready;
    const int64_t tiles = ((M + BM - 1) / BM) * ((N + BN - 1) / BN);
    const int64_t processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int blocks = static_cast<int>((tiles < processors ? tiles : processors) + 1) / 2 * 2;  // whole clusters
    fp8_linear_kernel<<<blocks, 384, SMEM_BYTES, at::cuda::getCurrentCUDAStream()>>>(
        x_map, w_map, static_cast<const uint8_t*>(x.data_ptr()), xs.data_ptr<float>(),
        static_cast<const uint8_t*>(w.data_ptr()), ws.data_ptr<float>(), static_cast<uint16_t*>(y.data_ptr()),
        static_cast<int>(M), static_cast<int>(N), static_cast<int>(K));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
source = source.replace("@REGISTERS@", ", ".join(f"%{i}" for i in range(64)))
source = source.replace("@OPERANDS@", ", ".join(f'"+f"(d[{i}])' for i in range(64)))

extension = load_inline(
    name=f"fp8_linear_rotated_cluster_{TILE_N}_{STAGES}",
    cpp_sources="torch::Tensor run(torch::Tensor x, torch::Tensor xs, torch::Tensor w, torch::Tensor ws);",
    cuda_sources=source,
    functions=["run"],
    extra_cuda_cflags=[
        "-O3",
        "-gencode=arch=compute_90a,code=sm_90a",
        f"-DTILE_N={TILE_N}",
        f"-DSTAGES={STAGES}",
    ],
)


def dense(t):
    t = t.contiguous()
    return t if t.data_ptr() % 16 == 0 else t.clone()


class ModelNew(nn.Module):
    def forward(self, x, x_scales, weight, weight_scales):
        return extension.run(dense(x), dense(x_scales.float()), dense(weight), dense(weight_scales.float()))
