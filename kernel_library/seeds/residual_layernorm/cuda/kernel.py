import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

RESIDENT = 4
CONFIGS = {"RESIDENT": [2, 3, 4]}
BULK_STORES = 0
NAME = "residual_layernorm_ring_direct"

cuda_source = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_bf16.h>
#include <algorithm>
#include <cstdint>
#include <cmath>
#include <tuple>

constexpr int CAPACITY = 512;                       // 16-byte vectors of the longest row of the ring
constexpr int ROW_THREADS = 256;
constexpr int VPT = CAPACITY / ROW_THREADS;         // vectors per thread
constexpr int STAGES = 12 / RESIDENT;               // rows in the ring of a block: 12 rows, 192 KB, per multiprocessor
constexpr int RING_BYTES = STAGES * 2 * CAPACITY * 16;
constexpr int GENERIC_THREADS = 256;
constexpr float LARGEST = 3.402823466e38f;
constexpr float SHRINK = 8.271806125530277e-25f;    // 2^-80
struct Numbers {
    float scale;    // 2^-(k+1), where 2^k >= features
    float factor;   // 2^k / features
    float inverse;  // 1 / features
    float eps;
};

__device__ __forceinline__ float lo(uint32_t v) { return __uint_as_float(v << 16); }
__device__ __forceinline__ float hi(uint32_t v) { return __uint_as_float(v & 0xffff0000u); }

__device__ __forceinline__ uint32_t pack(float a, float b) {
    __nv_bfloat162 t = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<uint32_t*>(&t);
}

__device__ __forceinline__ uint32_t add2(uint32_t a, uint32_t b) {
    return pack(lo(a) + lo(b), hi(a) + hi(b));
}

__device__ __forceinline__ uint4 add8(const uint4& a, const uint4& b) {
    return make_uint4(add2(a.x, b.x), add2(a.y, b.y), add2(a.z, b.z), add2(a.w, b.w));
}

__device__ __forceinline__ void sum2(uint32_t v, float scale, float offset, float& s, float& t) {
    s += fmaf(lo(v), scale, offset);
    t += fmaf(hi(v), scale, offset);
}

__device__ __forceinline__ void sum8(const uint4& v, float scale, float offset, float& s, float& t) {
    sum2(v.x, scale, offset, s, t);
    sum2(v.y, scale, offset, s, t);
    sum2(v.z, scale, offset, s, t);
    sum2(v.w, scale, offset, s, t);
}

__device__ __forceinline__ void square2(uint32_t v, float c, float shift, float& s, float& t) {
    const float d = fmaf(lo(v), c, -shift);
    const float e = fmaf(hi(v), c, -shift);
    s = fmaf(d, d, s);
    t = fmaf(e, e, t);
}

__device__ __forceinline__ void square8(const uint4& v, float c, float shift, float& s, float& t) {
    square2(v.x, c, shift, s, t);
    square2(v.y, c, shift, s, t);
    square2(v.z, c, shift, s, t);
    square2(v.w, c, shift, s, t);
}

__device__ __forceinline__ uint32_t norm2(uint32_t v, uint32_t w, uint32_t b, float c, float shift, float rstd) {
    const float d = fmaf(lo(v), c, -shift) * rstd;
    const float e = fmaf(hi(v), c, -shift) * rstd;
    return pack(fmaf(d, lo(w), lo(b)), fmaf(e, hi(w), hi(b)));
}

__device__ __forceinline__ uint4 norm8(const uint4& v, const uint4& w, const uint4& b, float c, float shift, float rstd) {
    return make_uint4(norm2(v.x, w.x, b.x, c, shift, rstd), norm2(v.y, w.y, b.y, c, shift, rstd),
                      norm2(v.z, w.z, b.z, c, shift, rstd), norm2(v.w, w.w, b.w, c, shift, rstd));
}

// The same sum in every thread; `partial` must not be in use by another reduction.
template <int T>
__device__ __forceinline__ float block_sum(float v, float* partial) {
#pragma unroll
    for (int o = 16; o > 0; o >>= 1) v += __shfl_xor_sync(0xffffffffu, v, o);
    if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = v;
    __syncthreads();
    float4 s = reinterpret_cast<const float4*>(partial)[0];
#pragma unroll
    for (int i = 1; i < T / 128; ++i) {
        const float4 p = reinterpret_cast<const float4*>(partial)[i];
        s.x += p.x; s.y += p.y; s.z += p.z; s.w += p.w;
    }
    return (s.x + s.y) + (s.z + s.w);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ void bar_init(uint32_t bar) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(bar) : "memory");
}

__device__ __forceinline__ void bar_expect(uint32_t bar, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}

__device__ __forceinline__ void bar_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}

__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, uint32_t bytes, uint32_t bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 :: "r"(to), "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(bar) : "memory");
}

__device__ __forceinline__ void bulk_store(void* to, uint32_t from, uint32_t bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(__cvta_generic_to_global(to)), "r"(from), "r"(bytes) : "memory");
}

__device__ __forceinline__ void proxy_fence() {
    asm volatile("fence.proxy.async;" ::: "memory");
}

template <bool FULL>
__global__ void __launch_bounds__(ROW_THREADS, RESIDENT) ring_kernel(
    const uint4* __restrict__ x, const uint4* __restrict__ r, const uint4* __restrict__ weight,
    const uint4* __restrict__ bias, uint4* __restrict__ y, uint4* __restrict__ total, long rows, int vectors, Numbers k) {
    extern __shared__ __align__(128) uint4 ring[];  // stages of one row of x and one of the residual
    __shared__ __align__(8) unsigned long long full[STAGES];
    __shared__ __align__(16) float partial[3][ROW_THREADS / 32];
    const int n = FULL ? CAPACITY : vectors;
    const uint32_t bytes = 16u * n;
    const int tid = threadIdx.x;

    auto fill = [&](int stage, long row) {  // called by thread 0
        const uint32_t bar = shared_address(full + stage);
        const uint32_t to = shared_address(ring + stage * 2 * CAPACITY);
        bar_expect(bar, 2 * bytes);
        bulk_load(to, x + row * n, bytes, bar);
        bulk_load(to + 16 * CAPACITY, r + row * n, bytes, bar);
    };

    if (tid == 0) {
        for (int i = 0; i < STAGES; ++i) bar_init(shared_address(full + i));
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        proxy_fence();
        for (int i = 0; i < STAGES; ++i) {
            const long row = blockIdx.x + (long)i * gridDim.x;
            if (row < rows) fill(i, row);
        }
    }
    uint4 w[VPT], b[VPT];
#pragma unroll
    for (int i = 0; i < VPT; ++i) {
        const int j = i * ROW_THREADS + tid;
        w[i] = b[i] = make_uint4(0, 0, 0, 0);
        if (FULL || j < n) {
            w[i] = weight[j];
            b[i] = bias[j];
        }
    }
    __syncthreads();

    int stage = 0;
    uint32_t parity = 0;
    for (long row = blockIdx.x; row < rows; row += gridDim.x) {
        uint4* xs = ring + stage * 2 * CAPACITY;
        uint4* rs = xs + CAPACITY;
        bar_wait(shared_address(full + stage), parity);

        // The mean is taken relative to the first element: exact for constant rows, and accurate for shifted ones.
        const uint32_t first_x = *reinterpret_cast<const unsigned short*>(xs);
        const uint32_t first_r = *reinterpret_cast<const unsigned short*>(rs);
        const float first = lo(add2(first_x, first_r));
        const float offset = -first * k.scale;
        uint4 v[VPT];
        float s = 0.f, t = 0.f;
#pragma unroll
        for (int i = 0; i < VPT; ++i) {
            const int j = i * ROW_THREADS + tid;
            if (FULL || j < n) {
                v[i] = add8(xs[j], rs[j]);
#if BULK_STORES == 0
                __stcs(total + row * n + j, v[i]);
#endif
                sum8(v[i], k.scale, offset, s, t);
            }
        }
        const float mean = 2.f * fmaf(block_sum<ROW_THREADS>(s + t, partial[0]), k.factor, 0.5f * first);
        // Past this barrier all threads have read the stage.
#if BULK_STORES == 0
        if (tid == 0) {
            const long next = row + (long)STAGES * gridDim.x;
            if (next < rows) fill(stage, next);
        }
#else
#pragma unroll
        for (int i = 0; i < VPT; ++i) {
            const int j = i * ROW_THREADS + tid;
            if (FULL || j < n) xs[j] = v[i];
        }
        proxy_fence();
#endif

        s = 0.f;
        t = 0.f;
#pragma unroll
        for (int i = 0; i < VPT; ++i) {
            const int j = i * ROW_THREADS + tid;
            if (FULL || j < n) square8(v[i], 1.f, mean, s, t);
        }
        const float squares = block_sum<ROW_THREADS>(s + t, partial[1]);
#if BULK_STORES
        if (tid == 0) bulk_store(total + row * n, shared_address(xs), bytes);
#endif
        float c = 1.f, shift = mean, rstd;
        if (squares <= LARGEST) {
            rstd = rsqrtf(fmaf(squares, k.inverse, k.eps));
        } else {  // the squares overflow, or the row holds an infinity or a NaN; eps does not matter
            c = SHRINK;
            shift = mean * SHRINK;
            s = 0.f;
            t = 0.f;
#pragma unroll
            for (int i = 0; i < VPT; ++i) {
                const int j = i * ROW_THREADS + tid;
                if (FULL || j < n) square8(v[i], c, shift, s, t);
            }
            rstd = rsqrtf(block_sum<ROW_THREADS>(s + t, partial[2]) * k.inverse);
        }

#pragma unroll
        for (int i = 0; i < VPT; ++i) {
            const int j = i * ROW_THREADS + tid;
            if (FULL || j < n) {
                const uint4 result = norm8(v[i], w[i], b[i], c, shift, rstd);
#if BULK_STORES
                rs[j] = result;
#else
                __stcs(y + row * n + j, result);
#endif
            }
        }
#if BULK_STORES
        proxy_fence();
        __syncthreads();
        if (tid == 0) {
            bulk_store(y + row * n, shared_address(rs), bytes);
            asm volatile("cp.async.bulk.commit_group;" ::: "memory");
            // The stage of the row before this one is refilled when its stores have read it.
            if (row != blockIdx.x) {
                const long next = row + (long)(STAGES - 1) * gridDim.x;
                if (next < rows) {
                    asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
                    fill(stage == 0 ? STAGES - 1 : stage - 1, next);
                }
            }
        }
#endif
        if (++stage == STAGES) {
            stage = 0;
            parity ^= 1;
        }
    }
#if BULK_STORES
    if (tid == 0) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
}

__device__ __forceinline__ float rounded_sum(const __nv_bfloat16* x, const __nv_bfloat16* r, long i) {
    return __bfloat162float(__float2bfloat16_rn(__bfloat162float(x[i]) + __bfloat162float(r[i])));
}

__global__ void __launch_bounds__(GENERIC_THREADS) generic_kernel(
    const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ r, const __nv_bfloat16* __restrict__ weight,
    const __nv_bfloat16* __restrict__ bias, __nv_bfloat16* __restrict__ y, __nv_bfloat16* __restrict__ total, long n,
    Numbers k) {
    __shared__ __align__(16) float partial[3][GENERIC_THREADS / 32];
    const long base = (long)blockIdx.x * n;
    x += base;
    r += base;
    y += base;
    total += base;
    const float first = rounded_sum(x, r, 0);
    const float offset = -first * k.scale;
    float s = 0.f;
    for (long i = threadIdx.x; i < n; i += GENERIC_THREADS) {
        const float v = rounded_sum(x, r, i);
        total[i] = __float2bfloat16_rn(v);
        s += fmaf(v, k.scale, offset);
    }
    const float mean = 2.f * fmaf(block_sum<GENERIC_THREADS>(s, partial[0]), k.factor, 0.5f * first);
    s = 0.f;
    for (long i = threadIdx.x; i < n; i += GENERIC_THREADS) {
        const float d = rounded_sum(x, r, i) - mean;
        s = fmaf(d, d, s);
    }
    const float squares = block_sum<GENERIC_THREADS>(s, partial[1]);
    float c = 1.f, shift = mean, rstd;
    if (squares <= LARGEST) {
        rstd = rsqrtf(fmaf(squares, k.inverse, k.eps));
    } else {
        c = SHRINK;
        shift = mean * SHRINK;
        s = 0.f;
        for (long i = threadIdx.x; i < n; i += GENERIC_THREADS) {
            const float d = fmaf(rounded_sum(x, r, i), c, -shift);
            s = fmaf(d, d, s);
        }
        rstd = rsqrtf(block_sum<GENERIC_THREADS>(s, partial[2]) * k.inverse);
    }
    for (long i = threadIdx.x; i < n; i += GENERIC_THREADS) {
        const float d = fmaf(rounded_sum(x, r, i), c, -shift) * rstd;
        y[i] = __float2bfloat16_rn(fmaf(d, __bfloat162float(weight[i]), __bfloat162float(bias[i])));
    }
}

std::tuple<torch::Tensor, torch::Tensor> run(torch::Tensor x_, torch::Tensor r_, torch::Tensor w_, torch::Tensor b_,
                                             double eps) {
    auto x = x_.contiguous(), r = r_.contiguous(), w = w_.contiguous(), b = b_.contiguous();
    TORCH_CHECK(x.scalar_type() == at::kBFloat16 && r.scalar_type() == at::kBFloat16 &&
                w.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16, "bfloat16 only");
    TORCH_CHECK(x.sizes() == r.sizes() && x.size(-1) == w.numel() && w.numel() == b.numel(), "sizes differ");
    auto y = torch::empty(x.sizes(), x.options());
    auto total = torch::empty(x.sizes(), x.options());
    const long n = x.size(-1);
    if (x.numel() == 0) return {y, total};
    const long rows = x.numel() / n;
    int e = 0;
    while ((1L << e) < n) ++e;
    Numbers k;
    k.scale = (float)std::ldexp(1.0, -(e + 1));
    k.factor = (float)(std::ldexp(1.0, e) / (double)n);
    k.inverse = (float)(1.0 / (double)n);
    k.eps = (float)eps;
    auto stream = at::cuda::getCurrentCUDAStream();
    const uintptr_t address = (uintptr_t)x.data_ptr() | (uintptr_t)r.data_ptr() | (uintptr_t)w.data_ptr() |
                              (uintptr_t)b.data_ptr() | (uintptr_t)y.data_ptr() | (uintptr_t)total.data_ptr();
    if (n % 8 == 0 && n <= 8 * CAPACITY && address % 16 == 0) {
        const uint4* xp = (const uint4*)x.data_ptr();
        const uint4* rp = (const uint4*)r.data_ptr();
        const uint4* wp = (const uint4*)w.data_ptr();
        const uint4* bp = (const uint4*)b.data_ptr();
        uint4* yp = (uint4*)y.data_ptr();
        uint4* tp = (uint4*)total.data_ptr();
        static const bool prepared = [] {
            C10_CUDA_CHECK(cudaFuncSetAttribute(ring_kernel<true>, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_BYTES));
            C10_CUDA_CHECK(cudaFuncSetAttribute(ring_kernel<false>, cudaFuncAttributeMaxDynamicSharedMemorySize, RING_BYTES));
            return true;
        }();
        (void)prepared;
        const long resident = (long)at::cuda::getCurrentDeviceProperties()->multiProcessorCount * RESIDENT;
        const unsigned grid = (unsigned)std::min(rows, resident);
        if (n == 8 * CAPACITY)
            ring_kernel<true><<<grid, ROW_THREADS, RING_BYTES, stream>>>(xp, rp, wp, bp, yp, tp, rows, CAPACITY, k);
        else
            ring_kernel<false><<<grid, ROW_THREADS, RING_BYTES, stream>>>(xp, rp, wp, bp, yp, tp, rows, (int)(n / 8), k);
    } else {
        generic_kernel<<<(unsigned)rows, GENERIC_THREADS, 0, stream>>>(
            (const __nv_bfloat16*)x.data_ptr(), (const __nv_bfloat16*)r.data_ptr(), (const __nv_bfloat16*)w.data_ptr(),
            (const __nv_bfloat16*)b.data_ptr(), (__nv_bfloat16*)y.data_ptr(), (__nv_bfloat16*)total.data_ptr(), n, k);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {y, total};
}
"""
extension = load_inline(
    name=f"{NAME}_{RESIDENT}",
    cpp_sources="std::tuple<torch::Tensor, torch::Tensor> run(torch::Tensor x_, torch::Tensor r_, torch::Tensor w_, "
                "torch::Tensor b_, double eps);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3", f"-DRESIDENT={RESIDENT}", f"-DBULK_STORES={BULK_STORES}"],
)


def supports(x, residual):
    return (x.is_cuda and residual.is_cuda and x.dtype == torch.bfloat16 and residual.dtype == torch.bfloat16
            and x.dim() >= 1 and x.shape == residual.shape)


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x, residual):
        return extension.run(x, residual, self.norm.weight, self.norm.bias, self.norm.eps)


def residual_layernorm(x, residual, weight, bias, eps=1e-5):
    """The layer norm of residual + x over the last dimension, and the sum."""
    return extension.run(x, residual, weight, bias, eps)
