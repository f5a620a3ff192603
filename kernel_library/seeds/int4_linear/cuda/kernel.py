NAME = "int4_linear_late_2"
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_bf16.h>
#include <algorithm>
#include <cstdint>

// nibbles 0 and 4 of w as a bf16 pair q - 8 (exact)
__device__ __forceinline__ uint32_t unpack(uint32_t w) {
    uint32_t u, r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(u) : "r"(w), "r"(0x000f000fu), "r"(0x43004300u));
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(u), "r"(0x3f803f80u), "r"(0xc308c308u));
    return r;
}

// product rounded to bf16, as PyTorch rounds the weights
__device__ __forceinline__ uint32_t times(uint32_t v, uint32_t s) {
    uint32_t r;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(r) : "r"(v), "r"(s), "r"(0x80008000u));
    return r;
}

__device__ __forceinline__ void mma_bf16(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint4 load_stream(const uint8_t* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

// 32 elements of a row of x in the order in which unpack delivers the weights
__device__ __forceinline__ void load_x(uint32_t (&xf)[16], const uint16_t* p, bool ok) {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        uint4 v = make_uint4(0u, 0u, 0u, 0u);
        if (ok) v = __ldg(reinterpret_cast<const uint4*>(p) + w);
        xf[4 * w + 0] = __byte_perm(v.x, v.z, 0x5410);
        xf[4 * w + 1] = __byte_perm(v.x, v.z, 0x7632);
        xf[4 * w + 2] = __byte_perm(v.y, v.w, 0x5410);
        xf[4 * w + 3] = __byte_perm(v.y, v.w, 0x7632);
    }
}

// one group of 128: s0 and s1 are the scales of rows g and g + 8
__device__ __forceinline__ void group_exact(float (&c)[4], const uint4& lo, const uint4& hi, uint32_t s0, uint32_t s1,
                                            const uint32_t (&xf)[16]) {
    const uint32_t d0 = s0 * 0x00010001u, d1 = s1 * 0x00010001u;
    const uint32_t l[4] = {lo.x, lo.y, lo.z, lo.w};
    const uint32_t h[4] = {hi.x, hi.y, hi.z, hi.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        mma_bf16(c, times(unpack(l[w]), d0), times(unpack(h[w]), d1),
                 times(unpack(l[w] >> 4), d0), times(unpack(h[w] >> 4), d1), xf[4 * w], xf[4 * w + 1]);
        mma_bf16(c, times(unpack(l[w] >> 8), d0), times(unpack(h[w] >> 8), d1),
                 times(unpack(l[w] >> 12), d0), times(unpack(h[w] >> 12), d1), xf[4 * w + 2], xf[4 * w + 3]);
    }
}

constexpr int WARPS = 16, BLOCK_THREADS = 512, SLICE = 4, MAX_TILES = 4, SMEM = 0;

template <bool FULL>
__global__ void __launch_bounds__(BLOCK_THREADS, 1) int4_linear(
    const uint16_t* __restrict__ x, const uint8_t* __restrict__ packed, const uint16_t* __restrict__ scales,
    __nv_bfloat16* __restrict__ y, int rows, int outs, int groups, int per_block) {
    __shared__ __align__(16) uint16_t sc[WARPS][MAX_TILES * 16][SLICE];
    __shared__ float4 red[MAX_TILES][WARPS][32];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int tiles = (outs + 15) / 16;
    const int first = blockIdx.x * per_block;
    const int count = min(per_block, tiles - first);
    const int row = blockIdx.y * 8 + g;
    const long long stride = groups * 64LL;
    const int slice = FULL ? SLICE : min(SLICE, (groups + WARPS - 1) / WARPS);
    const int passes = (groups + WARPS * slice - 1) / (WARPS * slice);

#pragma unroll 1
    for (int pass = 0; pass < passes; ++pass) {
        const int base = (pass * WARPS + warp) * slice;
        const int n = FULL ? SLICE : max(0, min(slice, groups - base));
        const uint8_t* origin = packed + (base * 64 + t * 16);
        uint4 w[SLICE][2];
        {
            const uint8_t* p0 = origin + min(first * 16 + g, outs - 1) * stride;
            const uint8_t* p1 = origin + min(first * 16 + g + 8, outs - 1) * stride;
#pragma unroll
            for (int i = 0; i < SLICE; ++i) {
                if (FULL || i < n) {
                    w[i][0] = load_stream(p0 + i * 64);
                    w[i][1] = load_stream(p1 + i * 64);
                }
            }
        }
        __syncwarp();
        for (int r = lane; r < count * 16; r += 32) {
            const uint16_t* p = scales + (long long)min(first * 16 + r, outs - 1) * groups + base;
            if (FULL) {
                *reinterpret_cast<uint2*>(&sc[warp][r][0]) = *reinterpret_cast<const uint2*>(p);
            } else {
                for (int i = 0; i < n; ++i) sc[warp][r][i] = p[i];
            }
        }
        uint32_t xf[SLICE][16];
#pragma unroll
        for (int i = 0; i < SLICE; ++i) {
            if (FULL || i < n)
                load_x(xf[i], x + (long long)row * groups * 128 + (base + i) * 128 + t * 32, row < rows);
        }
        __syncwarp();
#pragma unroll 1
        for (int j = 0; j < count; ++j) {
            const bool more = j + 1 < count;
            const uint8_t* p0 = origin + min((first + j + 1) * 16 + g, outs - 1) * stride;
            const uint8_t* p1 = origin + min((first + j + 1) * 16 + g + 8, outs - 1) * stride;
            float acc[4] = {0.f, 0.f, 0.f, 0.f};
            if (pass > 0) {
                const float4 old = red[j][warp][lane];
                acc[0] = old.x; acc[1] = old.y; acc[2] = old.z; acc[3] = old.w;
            }
#pragma unroll
            for (int i = 0; i < SLICE; ++i) {
                if (FULL || i < n) {
                    group_exact(acc, w[i][0], w[i][1], sc[warp][j * 16 + g][i], sc[warp][j * 16 + g + 8][i], xf[i]);
                    if (more) {
                        w[i][0] = load_stream(p0 + i * 64);
                        w[i][1] = load_stream(p1 + i * 64);
                    }
                }
            }
            red[j][warp][lane] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        }
    }
    __syncthreads();
    const float* sums = reinterpret_cast<const float*>(red);
    for (int o = threadIdx.x; o < count * 128; o += BLOCK_THREADS) {
        const int j = o >> 7, e = o & 127;
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < WARPS; ++k) sum += sums[(j * WARPS + k) * 128 + e];
        const int out = (first + j) * 16 + (e >> 4) + ((e >> 1) & 1) * 8;
        const int at = blockIdx.y * 8 + ((e >> 2) & 3) * 2 + (e & 1);
        if (out < outs && at < rows) y[(long long)at * outs + out] = __float2bfloat16_rn(sum);
    }
}

// one group of 128 of two rows without the scales
template <bool TWO>
__device__ __forceinline__ void group_plain(float (&c)[4], const uint4& lo, const uint4& hi, const uint32_t (&xf)[16]) {
    const uint32_t l[4] = {lo.x, lo.y, lo.z, lo.w};
    const uint32_t h[4] = {hi.x, hi.y, hi.z, hi.w};
    float e[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
        mma_bf16(c, unpack(l[w]), unpack(h[w]), unpack(l[w] >> 4), unpack(h[w] >> 4), xf[4 * w], xf[4 * w + 1]);
        mma_bf16(TWO ? e : c, unpack(l[w] >> 8), unpack(h[w] >> 8), unpack(l[w] >> 12), unpack(h[w] >> 12),
                 xf[4 * w + 2], xf[4 * w + 3]);
    }
    if (TWO) {
#pragma unroll
        for (int i = 0; i < 4; ++i) c[i] += e[i];
    }
}

constexpr bool D_TWO = true;
// One row of x. B's column n is the group base + n of x, A's rows g and g + 8 are the group base + g of two
// outputs; only the diagonals of the products are used. A warp owns 8 groups (512 bytes of a row of weights).
constexpr int D_WARPS = 8, D_THREADS = 256, D_OUTS = 16, D_PAIRS = D_OUTS / 2, D_DEPTH = 3, D_PITCH = 68;

// the weights multiplied by their scales and rounded as PyTorch does, for blocks with results that are not finite
__device__ __noinline__ void exact_block(const uint16_t* __restrict__ x, const uint8_t* __restrict__ packed,
                                         const uint16_t* __restrict__ scales, int outs, int groups, float* red) {
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int stride = groups * 64;
    const bool diagonal = t == (g >> 1);
#pragma unroll 1
    for (int start = 0; start < groups; start += 64) {
        const int base = start + warp * 8;
        uint32_t xf[16];
        load_x(xf, x + (base + g) * 128 + t * 32, true);
#pragma unroll 1
        for (int p = 0; p < D_PAIRS; ++p) {
            const int o0 = min((int)blockIdx.x * D_OUTS + 2 * p, outs - 1);
            const int o1 = min((int)blockIdx.x * D_OUTS + 2 * p + 1, outs - 1);
            const uint4 lo = load_stream(packed + (base * 64 + lane * 16) + (long long)o0 * stride);
            const uint4 hi = load_stream(packed + (base * 64 + lane * 16) + (long long)o1 * stride);
            float acc[4] = {0.f, 0.f, 0.f, 0.f};
            group_exact(acc, lo, hi, scales[(long long)o0 * groups + base + g], scales[(long long)o1 * groups + base + g],
                        xf);
            if (diagonal) {
                float v0 = (g & 1) ? acc[1] : acc[0];
                float v1 = (g & 1) ? acc[3] : acc[2];
                float* at = red + 2 * p * D_PITCH + warp * 8 + g;
                if (start > 0) {
                    v0 += at[0];
                    v1 += at[D_PITCH];
                }
                at[0] = v0;
                at[D_PITCH] = v1;
            }
        }
    }
}

// the sum of output threadIdx.x / 16
__device__ __forceinline__ float total(const float* red) {
    const float4 v = *reinterpret_cast<const float4*>(red + (threadIdx.x >> 4) * D_PITCH + (threadIdx.x & 15) * 4);
    float sum = (v.x + v.y) + (v.z + v.w);
#pragma unroll
    for (int m = 8; m > 0; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    return sum;
}

__global__ void __launch_bounds__(D_THREADS, 4) int4_diagonal(
    const uint16_t* __restrict__ x, const uint8_t* __restrict__ packed, const uint16_t* __restrict__ scales,
    __nv_bfloat16* __restrict__ y, int outs, int groups) {
    __shared__ __align__(16) uint16_t sc[D_WARPS][D_OUTS][8];
    __shared__ __align__(16) float red[D_OUTS][D_PITCH];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    const int first = blockIdx.x * D_OUTS;
    const int stride = groups * 64;
    const bool diagonal = t == (g >> 1);

#pragma unroll 1
    for (int start = 0; start < groups; start += 64) {
        const int base = start + warp * 8;
        const uint8_t* origin = packed + (base * 64 + lane * 16);
        uint4 lo[D_DEPTH], hi[D_DEPTH];
#pragma unroll
        for (int p = 0; p < D_DEPTH; ++p) {
            lo[p] = load_stream(origin + (long long)min(first + 2 * p, outs - 1) * stride);
            hi[p] = load_stream(origin + (long long)min(first + 2 * p + 1, outs - 1) * stride);
        }
        __syncwarp();
        if (lane < D_OUTS) {
            *reinterpret_cast<uint4*>(&sc[warp][lane][0]) = *reinterpret_cast<const uint4*>(
                scales + (long long)min(first + lane, outs - 1) * groups + base);
        }
        uint32_t xf[16];
        load_x(xf, x + (base + g) * 128 + t * 32, true);
        __syncwarp();
#pragma unroll
        for (int p = 0; p < D_PAIRS; ++p) {
            const int d = p % D_DEPTH;
            float acc[4] = {0.f, 0.f, 0.f, 0.f};
            group_plain<D_TWO>(acc, lo[d], hi[d], xf);
            if (p + D_DEPTH < D_PAIRS) {
                lo[d] = load_stream(origin + (long long)min(first + 2 * (p + D_DEPTH), outs - 1) * stride);
                hi[d] = load_stream(origin + (long long)min(first + 2 * (p + D_DEPTH) + 1, outs - 1) * stride);
            }
            if (diagonal) {
                float v0 = ((g & 1) ? acc[1] : acc[0]) * __uint_as_float((uint32_t)sc[warp][2 * p][g] << 16);
                float v1 = ((g & 1) ? acc[3] : acc[2]) * __uint_as_float((uint32_t)sc[warp][2 * p + 1][g] << 16);
                if (start > 0) {
                    v0 += red[2 * p][warp * 8 + g];
                    v1 += red[2 * p + 1][warp * 8 + g];
                }
                red[2 * p][warp * 8 + g] = v0;
                red[2 * p + 1][warp * 8 + g] = v1;
            }
        }
    }
    __syncthreads();
    float sum = total(&red[0][0]);
    // overflow, infinities and NaN
    if (__syncthreads_or(!(fabsf(sum) <= 3.4028234e38f))) {
        exact_block(x, packed, scales, outs, groups, &red[0][0]);
        __syncthreads();
        sum = total(&red[0][0]);
    }
    const int out = first + (threadIdx.x >> 4);
    if ((threadIdx.x & 15) == 0 && out < outs) y[out] = __float2bfloat16_rn(sum);
}

torch::Tensor run(torch::Tensor x, torch::Tensor packed, torch::Tensor scales) {
    const c10::cuda::CUDAGuard guard(x.device());
    const int64_t features = x.size(-1);
    const int64_t outs = packed.size(0);
    auto sizes = x.sizes().vec();
    sizes.back() = outs;
    if (features == 0) return at::zeros(sizes, x.options());
    auto y = at::empty(sizes, x.options());
    if (y.numel() == 0) return y;
    const int64_t rows = x.numel() / features;
    const int64_t groups = features / 128;
    if (rows == 1 && groups % 64 == 0) {
        int4_diagonal<<<(unsigned)((outs + D_OUTS - 1) / D_OUTS), D_THREADS, 0, at::cuda::getCurrentCUDAStream()>>>(
            reinterpret_cast<const uint16_t*>(x.data_ptr()), reinterpret_cast<const uint8_t*>(packed.data_ptr()),
            reinterpret_cast<const uint16_t*>(scales.data_ptr()), reinterpret_cast<__nv_bfloat16*>(y.data_ptr()),
            (int)outs, (int)groups);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        return y;
    }
    const int64_t tiles = (outs + 15) / 16;
    const int64_t per_block = std::max<int64_t>(1, std::min<int64_t>(MAX_TILES, (tiles + 131) / 132));
    const dim3 grid((unsigned)((tiles + per_block - 1) / per_block), (unsigned)((rows + 7) / 8));
    auto kernel = (groups % 64 == 0) ? int4_linear<true> : int4_linear<false>;
    if (SMEM > 48 * 1024) {
        C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
    }
    kernel<<<grid, BLOCK_THREADS, SMEM, at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const uint16_t*>(x.data_ptr()), reinterpret_cast<const uint8_t*>(packed.data_ptr()),
        reinterpret_cast<const uint16_t*>(scales.data_ptr()), reinterpret_cast<__nv_bfloat16*>(y.data_ptr()),
        (int)rows, (int)outs, (int)groups, (int)per_block);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return y;
}
"""
extension = load_inline(
    name=NAME,
    cpp_sources="torch::Tensor run(torch::Tensor x, torch::Tensor packed, torch::Tensor scales);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3"],
)


def ready(tensor):
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def supports(x, packed, scales):
    return (
        x.is_cuda
        and x.dim() >= 1
        and x.dtype == torch.bfloat16
        and scales.dtype == torch.bfloat16
        and packed.dtype == torch.uint8
        and packed.dim() == 2
        and scales.dim() == 2
        and x.shape[-1] % 128 == 0
        and packed.shape[1] * 2 == x.shape[-1]
        and scales.shape[0] == packed.shape[0]
        and scales.shape[1] * 128 == x.shape[-1]
    )


class ModelNew(nn.Module):
    def forward(self, x, packed, scales):
        return extension.run(ready(x), ready(packed), ready(scales))
