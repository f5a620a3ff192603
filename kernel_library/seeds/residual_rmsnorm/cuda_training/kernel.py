import torch
from torch import nn
from torch.utils.cpp_extension import load_inline


cuda_source = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cstdint>
#include <vector>

struct TypeBf16 {
    using type = __nv_bfloat16;
    static constexpr int VEC = 8;
    static __device__ __forceinline__ float get(type v) { return __bfloat162float(v); }
    static __device__ __forceinline__ type put(float v) { return __float2bfloat16_rn(v); }
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
        const unsigned u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            f[2 * i] = __uint_as_float(u[i] << 16);
            f[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        }
    }
    static __device__ __forceinline__ uint4 pack(const float (&f)[8]) {
        unsigned u[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __nv_bfloat162 b = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
            u[i] = *reinterpret_cast<unsigned*>(&b);
        }
        return make_uint4(u[0], u[1], u[2], u[3]);
    }
};

struct TypeF16 {
    using type = __half;
    static constexpr int VEC = 8;
    static __device__ __forceinline__ float get(type v) { return __half2float(v); }
    static __device__ __forceinline__ type put(float v) { return __float2half_rn(v); }
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[8]) {
        unsigned u[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float2 p = __half22float2(*reinterpret_cast<__half2*>(&u[i]));
            f[2 * i] = p.x;
            f[2 * i + 1] = p.y;
        }
    }
    static __device__ __forceinline__ uint4 pack(const float (&f)[8]) {
        unsigned u[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            __half2 b = __floats2half2_rn(f[2 * i], f[2 * i + 1]);
            u[i] = *reinterpret_cast<unsigned*>(&b);
        }
        return make_uint4(u[0], u[1], u[2], u[3]);
    }
};

struct TypeF32 {
    using type = float;
    static constexpr int VEC = 4;
    static __device__ __forceinline__ float get(type v) { return v; }
    static __device__ __forceinline__ type put(float v) { return v; }
    static __device__ __forceinline__ void unpack(const uint4& v, float (&f)[4]) {
        f[0] = __uint_as_float(v.x);
        f[1] = __uint_as_float(v.y);
        f[2] = __uint_as_float(v.z);
        f[3] = __uint_as_float(v.w);
    }
    static __device__ __forceinline__ uint4 pack(const float (&f)[4]) {
        return make_uint4(__float_as_uint(f[0]), __float_as_uint(f[1]), __float_as_uint(f[2]), __float_as_uint(f[3]));
    }
};

// Keeps the compiler from holding the unpacked values of v in registers across this point.
__device__ __forceinline__ void opaque(uint4& v) {
    asm volatile("" : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w));
}

// Sum over the W warps of a row; for W > 1 the block is one row and scratch has W floats.
template <int W>
__device__ __forceinline__ float row_sum(float v, float* scratch) {
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    if constexpr (W > 1) {
        if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = v;
        __syncthreads();
        v = 0.f;
        if constexpr (W >= 4) {
            const float4* s = reinterpret_cast<const float4*>(scratch);
#pragma unroll
            for (int i = 0; i < W / 4; i++) {
                const float4 q = s[i];
                v += (q.x + q.y) + (q.z + q.w);
            }
        } else {
#pragma unroll
            for (int i = 0; i < W; i++) v += scratch[i];
        }
    }
    return v;
}

// ---- kernels for any number of features and any alignment ----

template <class D>
__global__ void __launch_bounds__(256) forward_any(
    const typename D::type* x, const typename D::type* r, const typename D::type* w, typename D::type* y,
    typename D::type* h, float* rstd, int64_t n, float eps) {
    __shared__ __align__(16) float scratch[8];
    const int64_t base = (int64_t)blockIdx.x * n;
    float sum = 0.f;
    for (int64_t c = threadIdx.x; c < n; c += 256) {
        const typename D::type v = D::put(D::get(x[base + c]) + D::get(r[base + c]));
        h[base + c] = v;
        const float f = D::get(v);
        sum += f * f;
    }
    sum = row_sum<8>(sum, scratch);
    const float rs = rsqrtf(sum / (float)n + eps);
    for (int64_t c = threadIdx.x; c < n; c += 256)
        y[base + c] = D::put((D::get(h[base + c]) * rs) * D::get(w[c]));
    if (threadIdx.x == 0) rstd[blockIdx.x] = rs;
}

template <class D>
__global__ void __launch_bounds__(256) backward_any(
    const typename D::type* dy, const typename D::type* dh, const typename D::type* h, const typename D::type* w,
    const float* rstd, typename D::type* dx, int64_t n) {
    __shared__ __align__(16) float scratch[8];
    const int64_t base = (int64_t)blockIdx.x * n;
    const float rs = rstd[blockIdx.x];
    float sum = 0.f;
    for (int64_t c = threadIdx.x; c < n; c += 256)
        sum += (D::get(dy[base + c]) * D::get(w[c])) * (D::get(h[base + c]) * rs);
    sum = row_sum<8>(sum, scratch);
    const float mean = sum / (float)n;
    for (int64_t c = threadIdx.x; c < n; c += 256) {
        const float g = D::get(dy[base + c]) * D::get(w[c]);
        const float xh = D::get(h[base + c]) * rs;
        dx[base + c] = D::put(D::get(dh[base + c]) + rs * (g - xh * mean));
    }
}

template <class D>
__global__ void __launch_bounds__(256) weight_any(
    const typename D::type* dy, const typename D::type* h, const float* rstd, float* part, int64_t rows, int64_t n) {
    __shared__ float s[8][32];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0.f;
    if (c < n)
        for (int64_t row = (int64_t)blockIdx.y * 8 + threadIdx.y; row < rows; row += (int64_t)gridDim.y * 8)
            sum += D::get(dy[row * n + c]) * (D::get(h[row * n + c]) * rstd[row]);
    s[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y == 0 && c < n) {
#pragma unroll
        for (int i = 1; i < 8; i++) sum += s[i][threadIdx.x];
        part[(int64_t)blockIdx.y * n + c] = sum;
    }
}

// Weight gradient: the sum of the partial sums, in a fixed order.
template <class D>
__global__ void __launch_bounds__(1024) weight_sum(
    const float* __restrict__ part, typename D::type* __restrict__ dw, int parts, int64_t n) {
    __shared__ float s[32][33];
    const int64_t c = (int64_t)blockIdx.x * 32 + threadIdx.x;
    float sum = 0.f;
    if (c < n) {
#pragma unroll 8
        for (int p = threadIdx.y; p < parts; p += 32) sum += part[(int64_t)p * n + c];
    }
    s[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    float v = s[threadIdx.x][threadIdx.y];
#pragma unroll
    for (int m = 16; m > 0; m >>= 1) v += __shfl_xor_sync(0xffffffffu, v, m);
    const int64_t column = (int64_t)blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x == 0 && column < n) dw[column] = D::put(v);
}

static bool aligned(const torch::Tensor& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0; }

template <class D>
void forward_slow(const torch::Tensor& x, const torch::Tensor& r, const torch::Tensor& w, torch::Tensor& y,
                  torch::Tensor& h, torch::Tensor& rstd, int64_t rows, int64_t n, float eps, cudaStream_t stream) {
    using type = typename D::type;
    forward_any<D><<<(unsigned)rows, 256, 0, stream>>>(
        (const type*)x.data_ptr(), (const type*)r.data_ptr(), (const type*)w.data_ptr(), (type*)y.data_ptr(),
        (type*)h.data_ptr(), (float*)rstd.data_ptr(), n, eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

// Returns the partial sums of the weight gradient.
template <class D>
torch::Tensor backward_slow(const torch::Tensor& dy, const torch::Tensor& dh, const torch::Tensor& h,
                            const torch::Tensor& w, const torch::Tensor& rstd, torch::Tensor& dx, int64_t rows,
                            int64_t n, cudaStream_t stream) {
    using type = typename D::type;
    const int64_t parts = std::min<int64_t>(64, (rows + 7) / 8);
    torch::Tensor part = at::empty({parts, n}, rstd.options());
    backward_any<D><<<(unsigned)rows, 256, 0, stream>>>(
        (const type*)dy.data_ptr(), (const type*)dh.data_ptr(), (const type*)h.data_ptr(), (const type*)w.data_ptr(),
        (const float*)rstd.data_ptr(), (type*)dx.data_ptr(), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    weight_any<D><<<dim3((unsigned)((n + 31) / 32), (unsigned)parts), dim3(32, 8), 0, stream>>>(
        (const type*)dy.data_ptr(), (const type*)h.data_ptr(), (const float*)rstd.data_ptr(), (float*)part.data_ptr(),
        rows, n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return part;
}

// ---- kernels for aligned rows ----

// 16 bytes, or zeros where ok is false.
__device__ __forceinline__ uint4 load16(const uint4* p, bool ok) {
    uint4 v;
    asm volatile(
        "{\n\t"
        ".reg .pred q;\n\t"
        "setp.ne.b32 q, %5, 0;\n\t"
        "mov.b32 %0, 0;\n\t"
        "mov.b32 %1, 0;\n\t"
        "mov.b32 %2, 0;\n\t"
        "mov.b32 %3, 0;\n\t"
        "@q ld.global.nc.v4.b32 {%0, %1, %2, %3}, [%4];\n\t"
        "}"
        : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)
        : "l"(p), "r"((int)ok));
    return v;
}

// R rows per block, W warps per row, K vectors per thread.
template <class D, int W, int K, int R>
__global__ void __launch_bounds__(32 * W * R) forward_kernel(
    const uint4* __restrict__ x, const uint4* __restrict__ r, const uint4* __restrict__ w, uint4* __restrict__ y,
    uint4* __restrict__ h, float* __restrict__ rstd, int64_t rows, int nv, float n, float eps) {
    static_assert(W == 1 || R == 1, "only one-warp rows share a block");
    constexpr int T = 32 * W;
    constexpr int VEC = D::VEC;
    __shared__ __align__(16) float scratch[W];
    const int t = threadIdx.x % T;
    const int64_t row = (int64_t)blockIdx.x * R + threadIdx.x / T;
    if (row >= rows) return;  // a whole warp, and only where R > 1
    const int64_t base = row * nv;
    uint4 a[K], b[K];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int at = t + k * T;
        a[k] = load16(x + base + at, at < nv);
        b[k] = load16(r + base + at, at < nv);
    }
    float sum = 0.f;
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int at = t + k * T;
        float f[VEC], g[VEC];
        D::unpack(a[k], f);
        D::unpack(b[k], g);
#pragma unroll
        for (int j = 0; j < VEC; j++) f[j] += g[j];
        a[k] = D::pack(f);
        if (at < nv) h[base + at] = a[k];
        D::unpack(a[k], f);
#pragma unroll
        for (int j = 0; j < VEC; j++) sum += f[j] * f[j];
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int at = t + k * T;
        b[k] = at < nv ? __ldg(w + at) : make_uint4(0u, 0u, 0u, 0u);
    }
    sum = row_sum<W>(sum, scratch);
    const float rs = rsqrtf(sum / n + eps);
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int at = t + k * T;
        float f[VEC], g[VEC];
        opaque(a[k]);
        D::unpack(a[k], f);
        D::unpack(b[k], g);
#pragma unroll
        for (int j = 0; j < VEC; j++) f[j] = (f[j] * rs) * g[j];
        if (at < nv) y[base + at] = D::pack(f);
    }
    if (t == 0) rstd[row] = rs;
}

template <class D, int W, int K, int R>
void forward_launch(const torch::Tensor& x, const torch::Tensor& r, const torch::Tensor& w, torch::Tensor& y,
                    torch::Tensor& h, torch::Tensor& rstd, int64_t rows, int64_t n, float eps, cudaStream_t stream) {
    forward_kernel<D, W, K, R><<<(unsigned)((rows + R - 1) / R), 32 * W * R, 0, stream>>>(
        (const uint4*)x.data_ptr(), (const uint4*)r.data_ptr(), (const uint4*)w.data_ptr(), (uint4*)y.data_ptr(),
        (uint4*)h.data_ptr(), (float*)rstd.data_ptr(), rows, (int)(n / D::VEC), (float)n, eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <class D>
void forward_typed(const torch::Tensor& x, const torch::Tensor& r, const torch::Tensor& w, torch::Tensor& y,
                   torch::Tensor& h, torch::Tensor& rstd, int64_t rows, int64_t n, float eps) {
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    const int64_t nv = n / D::VEC;
    if (n % D::VEC != 0 || nv > 2048 || !aligned(x) || !aligned(r) || !aligned(w))
        forward_slow<D>(x, r, w, y, h, rstd, rows, n, eps, stream);
    else if (nv <= 64)
        forward_launch<D, 1, 2, 4>(x, r, w, y, h, rstd, rows, n, eps, stream);
    else if (nv <= 128)
        forward_launch<D, 1, 4, 4>(x, r, w, y, h, rstd, rows, n, eps, stream);
    else if (nv <= 256)
        forward_launch<D, 4, 2, 1>(x, r, w, y, h, rstd, rows, n, eps, stream);
    else if (nv <= 512)
        forward_launch<D, 8, 2, 1>(x, r, w, y, h, rstd, rows, n, eps, stream);
    else if (nv <= 1024)
        forward_launch<D, 16, 2, 1>(x, r, w, y, h, rstd, rows, n, eps, stream);
    else
        forward_launch<D, 32, 2, 1>(x, r, w, y, h, rstd, rows, n, eps, stream);
}

// Persistent: R rows per block at a time, W warps per row, K vectors per thread; one row of part per block.
template <class D, int W, int K, int R>
__global__ void __launch_bounds__(32 * W * R, 16 / (W * R)) backward_kernel(
    const uint4* __restrict__ dy, const uint4* __restrict__ dh, const uint4* __restrict__ h,
    const uint4* __restrict__ w, const float* __restrict__ rstd, uint4* __restrict__ dx, float* __restrict__ part,
    int64_t rows, int nv, float n) {
    static_assert(W == 1 || R == 1, "only one-warp rows share a block");
    constexpr int T = 32 * W;
    constexpr int VEC = D::VEC;
    __shared__ __align__(16) float scratch[2][W];
    const int t = threadIdx.x % T;
    const int group = threadIdx.x / T;
    uint4 wv[K];
    float acc[K][VEC];
#pragma unroll
    for (int k = 0; k < K; k++) {
        const int at = t + k * T;
        wv[k] = at < nv ? __ldg(w + at) : make_uint4(0u, 0u, 0u, 0u);
#pragma unroll
        for (int j = 0; j < VEC; j++) acc[k][j] = 0.f;
    }
    int parity = 0;
    for (int64_t i = (int64_t)blockIdx.x * R + group; i < rows; i += (int64_t)gridDim.x * R) {
        const int64_t row = i;
        const int64_t base = row * nv;
        uint4 g[K], v[K], d[K];
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int at = t + k * T;
            g[k] = load16(dy + base + at, at < nv);
            v[k] = load16(h + base + at, at < nv);
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int at = t + k * T;
            d[k] = load16(dh + base + at, at < nv);
        }
        const float rs = __ldg(rstd + row);
        float sum = 0.f;
#pragma unroll
        for (int k = 0; k < K; k++) {
            float gf[VEC], vf[VEC], wf[VEC];
            opaque(wv[k]);
            D::unpack(g[k], gf);
            D::unpack(v[k], vf);
            D::unpack(wv[k], wf);
#pragma unroll
            for (int j = 0; j < VEC; j++) {
                const float xh = vf[j] * rs;
                acc[k][j] += gf[j] * xh;
                sum += (gf[j] * wf[j]) * xh;
            }
        }
        sum = row_sum<W>(sum, scratch[parity]);
        parity ^= 1;
        const float mean = sum / n;
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int at = t + k * T;
            float gf[VEC], vf[VEC], wf[VEC], df[VEC];
            opaque(g[k]);
            opaque(v[k]);
            opaque(wv[k]);
            D::unpack(g[k], gf);
            D::unpack(v[k], vf);
            D::unpack(wv[k], wf);
            D::unpack(d[k], df);
#pragma unroll
            for (int j = 0; j < VEC; j++) df[j] += rs * (gf[j] * wf[j] - (vf[j] * rs) * mean);
            if (at < nv) dx[base + at] = D::pack(df);
        }
    }
    const int64_t columns = (int64_t)nv * VEC;
    float* out = part + (int64_t)blockIdx.x * columns;
    if constexpr (R > 1) {
        __shared__ __align__(16) float total[R][K * T * VEC];
#pragma unroll
        for (int k = 0; k < K; k++) {
            float4* s = reinterpret_cast<float4*>(&total[group][(t + k * T) * VEC]);
#pragma unroll
            for (int j = 0; j < VEC / 4; j++)
                s[j] = make_float4(acc[k][4 * j], acc[k][4 * j + 1], acc[k][4 * j + 2], acc[k][4 * j + 3]);
        }
        __syncthreads();
        for (int c = threadIdx.x; c < nv * VEC; c += T * R) {
            float s = 0.f;
#pragma unroll
            for (int i = 0; i < R; i++) s += total[i][c];
            out[c] = s;
        }
    } else {
#pragma unroll
        for (int k = 0; k < K; k++) {
            const int at = t + k * T;
            if (at < nv) {
                float4* s = reinterpret_cast<float4*>(out + (int64_t)at * VEC);
#pragma unroll
                for (int j = 0; j < VEC / 4; j++)
                    s[j] = make_float4(acc[k][4 * j], acc[k][4 * j + 1], acc[k][4 * j + 2], acc[k][4 * j + 3]);
            }
        }
    }
}

template <class D, int W, int K, int R>
torch::Tensor backward_launch(const torch::Tensor& dy, const torch::Tensor& dh, const torch::Tensor& h,
                              const torch::Tensor& w, const torch::Tensor& rstd, torch::Tensor& dx, int64_t rows,
                              int64_t n, cudaStream_t stream) {
    const int64_t sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    const int64_t blocks = std::min<int64_t>(sms * (16 / (W * R)), (rows + R - 1) / R);
    torch::Tensor part = at::empty({blocks, n}, rstd.options());
    backward_kernel<D, W, K, R><<<(unsigned)blocks, 32 * W * R, 0, stream>>>(
        (const uint4*)dy.data_ptr(), (const uint4*)dh.data_ptr(), (const uint4*)h.data_ptr(),
        (const uint4*)w.data_ptr(), (const float*)rstd.data_ptr(), (uint4*)dx.data_ptr(), (float*)part.data_ptr(),
        rows, (int)(n / D::VEC), (float)n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return part;
}

template <class D>
torch::Tensor backward_parts(const torch::Tensor& dy, const torch::Tensor& dh, const torch::Tensor& h,
                             const torch::Tensor& w, const torch::Tensor& rstd, torch::Tensor& dx, int64_t rows,
                             int64_t n, cudaStream_t stream) {
    const int64_t nv = n / D::VEC;
    if (n % D::VEC != 0 || nv > 2048 || !aligned(dy) || !aligned(dh) || !aligned(h) || !aligned(w))
        return backward_slow<D>(dy, dh, h, w, rstd, dx, rows, n, stream);
    if (nv <= 64) return backward_launch<D, 1, 2, 8>(dy, dh, h, w, rstd, dx, rows, n, stream);
    if (nv <= 128) return backward_launch<D, 1, 4, 8>(dy, dh, h, w, rstd, dx, rows, n, stream);
    if (nv <= 256) return backward_launch<D, 2, 4, 1>(dy, dh, h, w, rstd, dx, rows, n, stream);
    if (nv <= 512) return backward_launch<D, 4, 4, 1>(dy, dh, h, w, rstd, dx, rows, n, stream);
    if (nv <= 1024) return backward_launch<D, 8, 4, 1>(dy, dh, h, w, rstd, dx, rows, n, stream);
    return backward_launch<D, 16, 4, 1>(dy, dh, h, w, rstd, dx, rows, n, stream);
}

template <class D>
void backward_typed(const torch::Tensor& dy, const torch::Tensor& dh, const torch::Tensor& h, const torch::Tensor& w,
                    const torch::Tensor& rstd, torch::Tensor& dx, torch::Tensor& dw, int64_t rows, int64_t n) {
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    torch::Tensor part = backward_parts<D>(dy, dh, h, w, rstd, dx, rows, n, stream);
    weight_sum<D><<<(unsigned)((n + 31) / 32), dim3(32, 32), 0, stream>>>(
        (const float*)part.data_ptr(), (typename D::type*)dw.data_ptr(), (int)part.size(0), n);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

std::vector<torch::Tensor> rms_forward(torch::Tensor x, torch::Tensor residual, torch::Tensor weight, double eps) {
    TORCH_CHECK(x.is_cuda() && x.is_contiguous() && residual.is_contiguous() && weight.is_contiguous(),
                "contiguous CUDA tensors expected");
    TORCH_CHECK(x.sizes() == residual.sizes() && x.scalar_type() == residual.scalar_type() &&
                    x.scalar_type() == weight.scalar_type(),
                "equal shapes and types expected");
    const c10::cuda::CUDAGuard guard(x.device());
    const int64_t n = weight.numel();
    const int64_t rows = n ? x.numel() / n : 0;
    torch::Tensor y = at::empty_like(x);
    torch::Tensor h = at::empty_like(x);
    torch::Tensor rstd = at::empty({rows}, x.options().dtype(at::kFloat));
    if (rows == 0) return {y, h, rstd};
    const auto type = x.scalar_type();
    if (type == at::kBFloat16)
        forward_typed<TypeBf16>(x, residual, weight, y, h, rstd, rows, n, (float)eps);
    else if (type == at::kHalf)
        forward_typed<TypeF16>(x, residual, weight, y, h, rstd, rows, n, (float)eps);
    else {
        TORCH_CHECK(type == at::kFloat, "unsupported type");
        forward_typed<TypeF32>(x, residual, weight, y, h, rstd, rows, n, (float)eps);
    }
    return {y, h, rstd};
}

std::vector<torch::Tensor> rms_backward(torch::Tensor dy, torch::Tensor dh, torch::Tensor h, torch::Tensor weight,
                                        torch::Tensor rstd) {
    TORCH_CHECK(dy.is_contiguous() && dh.is_contiguous() && h.is_contiguous() && weight.is_contiguous(),
                "contiguous tensors expected");
    TORCH_CHECK(dy.sizes() == h.sizes() && dh.sizes() == h.sizes() && dy.scalar_type() == h.scalar_type() &&
                    dh.scalar_type() == h.scalar_type(),
                "equal shapes and types expected");
    const c10::cuda::CUDAGuard guard(h.device());
    const int64_t n = weight.numel();
    const int64_t rows = n ? h.numel() / n : 0;
    torch::Tensor dx = at::empty_like(h);
    if (rows == 0) return {dx, at::zeros_like(weight)};
    torch::Tensor dw = at::empty_like(weight);
    const auto type = h.scalar_type();
    if (type == at::kBFloat16)
        backward_typed<TypeBf16>(dy, dh, h, weight, rstd, dx, dw, rows, n);
    else if (type == at::kHalf)
        backward_typed<TypeF16>(dy, dh, h, weight, rstd, dx, dw, rows, n);
    else {
        TORCH_CHECK(type == at::kFloat, "unsupported type");
        backward_typed<TypeF32>(dy, dh, h, weight, rstd, dx, dw, rows, n);
    }
    return {dx, dw};
}
"""

extension = load_inline(
    name="residual_rmsnorm_plain",
    cpp_sources="""
std::vector<torch::Tensor> rms_forward(torch::Tensor x, torch::Tensor residual, torch::Tensor weight, double eps);
std::vector<torch::Tensor> rms_backward(torch::Tensor dy, torch::Tensor dh, torch::Tensor h, torch::Tensor weight, torch::Tensor rstd);
""",
    cuda_sources=cuda_source,
    functions=["rms_forward", "rms_backward"],
    extra_cuda_cflags=["-O3"],
)


class ResidualRMSNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, residual, weight, eps):
        y, h, rstd = extension.rms_forward(x.contiguous(), residual.contiguous(), weight.contiguous(), eps)
        ctx.save_for_backward(h, weight, rstd)
        return y, h

    @staticmethod
    def backward(ctx, dy, dh):
        h, weight, rstd = ctx.saved_tensors
        dx, dw = extension.rms_backward(dy.contiguous(), dh.contiguous(), h, weight.contiguous(), rstd)
        return dx, dx, dw, None


class Norm(nn.Module):
    def __init__(self, features, eps):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(features))


def supports(x, residual):
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16, torch.float32) and x.dtype == residual.dtype


class ModelNew(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = Norm(features, 1e-6)

    def forward(self, x, residual):
        return ResidualRMSNorm.apply(x, residual, self.norm.weight, self.norm.eps)


def residual_rmsnorm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6
) -> tuple[torch.Tensor, torch.Tensor]:
    """The RMS norm of a sum, and the sum, with a backward pass."""
    return ResidualRMSNorm.apply(x, residual, weight, eps)
