import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

RESIDENT = 4
CONFIGS = {"RESIDENT": [4, 5]}
NAME = f"qk_norm_rotary_newest_first_{RESIDENT}"
FLAGS = ["-O3", f"-DRESIDENT={RESIDENT}"]

cuda_source = r"""
#include <torch/types.h>
#include <ATen/Dispatch.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cstdint>
#include <type_traits>
#include <vector>

// Two 16-bit numbers of one 32-bit word to float32 and back.
template <typename T> struct Pair;

template <> struct Pair<at::BFloat16> {
    static __device__ __forceinline__ float2 unpack(uint32_t u) {
        return make_float2(__uint_as_float(u << 16), __uint_as_float(u & 0xffff0000u));
    }
    static __device__ __forceinline__ uint32_t pack(float x, float y) {
        __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
        return *reinterpret_cast<uint32_t*>(&v);
    }
};

template <> struct Pair<at::Half> {
    static __device__ __forceinline__ float2 unpack(uint32_t u) {
        return __half22float2(*reinterpret_cast<__half2*>(&u));
    }
    static __device__ __forceinline__ uint32_t pack(float x, float y) {
        __half2 v = __floats2half2_rn(x, y);
        return *reinterpret_cast<uint32_t*>(&v);
    }
};

__device__ __forceinline__ float reciprocal_root(float x) { return rsqrtf(x); }
__device__ __forceinline__ double reciprocal_root(double x) { return 1.0 / sqrt(x); }

// Any head size, any even number of turned elements, any alignment: one warp per head.
template <typename T>
__global__ void __launch_bounds__(256) general(
        const T* __restrict__ q, const T* __restrict__ k, T* __restrict__ q_out, T* __restrict__ k_out,
        const T* __restrict__ q_weight, const T* __restrict__ k_weight,
        const T* __restrict__ cosine, const T* __restrict__ sine,
        long q_rows, long k_rows, long q_heads, long k_heads, long length, long size, long half,
        double q_eps, double k_eps) {
    using A = typename std::conditional<std::is_same<T, double>::value, double, float>::type;
    const int lane = threadIdx.x & 31;
    const long warps = (long)gridDim.x * 8;
    for (long row = (long)blockIdx.x * 8 + (threadIdx.x >> 5); row < q_rows + k_rows; row += warps) {
        const bool is_q = row < q_rows;
        const long local = is_q ? row : row - q_rows;
        const T* x = (is_q ? q : k) + local * size;
        T* y = (is_q ? q_out : k_out) + local * size;
        const T* w = is_q ? q_weight : k_weight;
        const A eps = static_cast<A>(is_q ? q_eps : k_eps);
        const long l = local / (is_q ? q_heads : k_heads) % length;
        const T* c = cosine + l * half;
        const T* s = sine + l * half;
        A sum = 0;
        for (long i = lane; i < size; i += 32) {
            const A v = static_cast<A>(x[i]);
            sum += v * v;
        }
        #pragma unroll
        for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        const A scale = reciprocal_root(sum / static_cast<A>(size) + eps);
        for (long i = lane; i < half; i += 32) {
            const A a = static_cast<A>(x[i]) * scale * static_cast<A>(w[i]);
            const A b = static_cast<A>(x[i + half]) * scale * static_cast<A>(w[i + half]);
            const A ci = static_cast<A>(c[i]), si = static_cast<A>(s[i]);
            y[i] = static_cast<T>(a * ci - b * si);
            y[i + half] = static_cast<T>(a * si + b * ci);
        }
        for (long i = 2 * half + lane; i < size; i += 32)
            y[i] = static_cast<T>(static_cast<A>(x[i]) * scale * static_cast<A>(w[i]));
    }
}

// One head of 128 elements in 8 lanes: 8 elements of each half per lane, normalised and turned in place.
template <typename T>
__device__ __forceinline__ void turn(uint4& first, uint4& second, const uint4 first_weight, const uint4 second_weight,
                                     const uint4 cosine, const uint4 sine, const float eps) {
    uint32_t a[4] = {first.x, first.y, first.z, first.w};
    uint32_t b[4] = {second.x, second.y, second.z, second.w};
    const uint32_t wa[4] = {first_weight.x, first_weight.y, first_weight.z, first_weight.w};
    const uint32_t wb[4] = {second_weight.x, second_weight.y, second_weight.z, second_weight.w};
    const uint32_t c[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
    const uint32_t s[4] = {sine.x, sine.y, sine.z, sine.w};
    float sum_a = 0.f, sum_b = 0.f;
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = Pair<T>::unpack(a[i]), v = Pair<T>::unpack(b[i]);
        sum_a = fmaf(u.x, u.x, sum_a);
        sum_b = fmaf(v.x, v.x, sum_b);
        sum_a = fmaf(u.y, u.y, sum_a);
        sum_b = fmaf(v.y, v.y, sum_b);
    }
    float sum = sum_a + sum_b;
    sum += __shfl_xor_sync(0xffffffffu, sum, 4);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    const float scale = rsqrtf(sum * (1.f / 128.f) + eps);
    #pragma unroll
    for (int i = 0; i < 4; i++) {
        const float2 u = Pair<T>::unpack(a[i]), v = Pair<T>::unpack(b[i]);
        const float2 p = Pair<T>::unpack(wa[i]), r = Pair<T>::unpack(wb[i]);
        const float2 ci = Pair<T>::unpack(c[i]), si = Pair<T>::unpack(s[i]);
        const float ux = u.x * scale * p.x, uy = u.y * scale * p.y;
        const float vx = v.x * scale * r.x, vy = v.y * scale * r.y;
        a[i] = Pair<T>::pack(ux * ci.x - vx * si.x, uy * ci.y - vy * si.y);
        b[i] = Pair<T>::pack(ux * si.x + vx * ci.x, uy * si.y + vy * ci.y);
    }
    first = make_uint4(a[0], a[1], a[2], a[3]);
    second = make_uint4(b[0], b[1], b[2], b[3]);
}

// Read once: no place in L1.
__device__ __forceinline__ uint4 load_once(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

constexpr int WARPS = 8, VECTORS = 128;  // a chunk of eight heads is 128 vectors of 16 bytes

// Chunks of eight heads, those of q before those of k, taken from the last to the first: what was written last is read
// first. One warp per chunk, 8 lanes per head, two heads per lane.
template <typename T>
__global__ void __launch_bounds__(WARPS * 32, RESIDENT) newest_first(
        const uint4* __restrict__ q, const uint4* __restrict__ k, uint4* __restrict__ q_out, uint4* __restrict__ k_out,
        const uint4* __restrict__ q_weight, const uint4* __restrict__ k_weight,
        const uint4* __restrict__ cosine, const uint4* __restrict__ sine,
        unsigned q_chunks, unsigned chunks, unsigned q_per, unsigned k_per, unsigned length, float q_eps, float k_eps) {
    const int lane = threadIdx.x & 31, sub = lane & 7;
    const unsigned id = blockIdx.x * WARPS + (threadIdx.x >> 5);
    if (id >= chunks) return;  // the whole warp
    const unsigned chunk = chunks - 1 - id;
    const bool is_q = chunk < q_chunks;
    const unsigned local = is_q ? chunk : chunk - q_chunks;
    const size_t offset = (size_t)local * VECTORS + (lane >> 3) * 16 + sub;
    const uint4* from = (is_q ? q : k) + offset;
    uint4 a0 = load_once(from), b0 = load_once(from + 8);
    uint4 a1 = load_once(from + 64), b1 = load_once(from + 72);
    const unsigned l = local / (is_q ? q_per : k_per) % length;
    const uint4 c = __ldg(cosine + (size_t)l * 8 + sub);
    const uint4 s = __ldg(sine + (size_t)l * 8 + sub);
    const uint4* weight = is_q ? q_weight : k_weight;
    const uint4 first_weight = __ldg(weight + sub), second_weight = __ldg(weight + 8 + sub);
    const float eps = is_q ? q_eps : k_eps;
    uint4* to = (is_q ? q_out : k_out) + offset;
    turn<T>(a0, b0, first_weight, second_weight, c, s, eps);
    __stcs(to, a0);
    __stcs(to + 8, b0);
    turn<T>(a1, b1, first_weight, second_weight, c, s, eps);
    __stcs(to + 64, a1);
    __stcs(to + 72, b1);
}

template <typename T>
void launch(const torch::Tensor& q, const torch::Tensor& k, torch::Tensor& q_out, torch::Tensor& k_out,
            const torch::Tensor& q_weight, const torch::Tensor& k_weight,
            const torch::Tensor& cosine, const torch::Tensor& sine,
            long positions, long length, long q_heads, long k_heads, double q_eps, double k_eps, cudaStream_t stream) {
    const long q_per = q_heads / 8, k_per = k_heads / 8;
    const long q_chunks = positions * q_per, chunks = q_chunks + positions * k_per;
    const long blocks = (chunks + WARPS - 1) / WARPS;
    newest_first<T><<<(unsigned)blocks, WARPS * 32, 0, stream>>>(
        static_cast<const uint4*>(q.data_ptr()), static_cast<const uint4*>(k.data_ptr()),
        static_cast<uint4*>(q_out.data_ptr()), static_cast<uint4*>(k_out.data_ptr()),
        static_cast<const uint4*>(q_weight.data_ptr()), static_cast<const uint4*>(k_weight.data_ptr()),
        static_cast<const uint4*>(cosine.data_ptr()), static_cast<const uint4*>(sine.data_ptr()),
        (unsigned)q_chunks, (unsigned)chunks, (unsigned)q_per, (unsigned)k_per, (unsigned)length,
        (float)q_eps, (float)k_eps);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

static bool aligned(const torch::Tensor& t) { return reinterpret_cast<uintptr_t>(t.data_ptr()) % 16 == 0; }

std::vector<torch::Tensor> run(torch::Tensor q, torch::Tensor k, torch::Tensor q_weight, torch::Tensor k_weight,
                               torch::Tensor cosine, torch::Tensor sine, double q_eps, double k_eps) {
    const c10::cuda::CUDAGuard guard(q.device());
    const auto type = q.scalar_type();
    TORCH_CHECK(k.scalar_type() == type, "q and k differ in type");
    TORCH_CHECK(q.dim() >= 3 && k.dim() >= 3, "too few dimensions");
    q = q.contiguous();
    k = k.contiguous();
    q_weight = q_weight.to(type).contiguous();
    k_weight = k_weight.to(type).contiguous();
    cosine = cosine.to(type).contiguous();
    sine = sine.to(type).contiguous();
    torch::Tensor q_out = at::empty(q.sizes(), q.options());
    torch::Tensor k_out = at::empty(k.sizes(), k.options());
    const long size = q.size(-1), half = cosine.size(-1);
    const long q_heads = q.size(-2), k_heads = k.size(-2), length = q.size(-3);
    TORCH_CHECK(k.size(-1) == size && k.size(-3) == length, "q and k do not fit");
    TORCH_CHECK(cosine.size(0) == length && 2 * half <= size, "the angles do not fit");
    const long q_rows = size ? q.numel() / size : 0, k_rows = size ? k.numel() / size : 0;
    if (q_rows + k_rows == 0) return {q_out, k_out};
    const auto stream = at::cuda::getCurrentCUDAStream();
    const bool plain = (type == at::ScalarType::BFloat16 || type == at::ScalarType::Half) && size == 128 && half == 64
        && q_rows > 0 && k_rows > 0 && q_rows / q_heads == k_rows / k_heads && q_rows + k_rows < (1L << 30)
        && aligned(q) && aligned(k) && aligned(q_out) && aligned(k_out)
        && aligned(q_weight) && aligned(k_weight) && aligned(cosine) && aligned(sine);
    if (plain && q_heads % 8 == 0 && k_heads % 8 == 0) {
        const long positions = q_rows / q_heads;
        if (type == at::ScalarType::BFloat16)
            launch<at::BFloat16>(q, k, q_out, k_out, q_weight, k_weight, cosine, sine, positions, length, q_heads, k_heads,
                                 q_eps, k_eps, stream);
        else
            launch<at::Half>(q, k, q_out, k_out, q_weight, k_weight, cosine, sine, positions, length, q_heads, k_heads,
                             q_eps, k_eps, stream);
        return {q_out, k_out};
    }
    const long blocks = std::min((q_rows + k_rows + 7) / 8, 132L * 64);
    AT_DISPATCH_FLOATING_TYPES_AND2(at::ScalarType::Half, at::ScalarType::BFloat16, type, "qk_norm_rotary", [&] {
        general<scalar_t><<<blocks, 256, 0, stream>>>(
            q.data_ptr<scalar_t>(), k.data_ptr<scalar_t>(), q_out.data_ptr<scalar_t>(), k_out.data_ptr<scalar_t>(),
            q_weight.data_ptr<scalar_t>(), k_weight.data_ptr<scalar_t>(),
            cosine.data_ptr<scalar_t>(), sine.data_ptr<scalar_t>(),
            q_rows, k_rows, q_heads, k_heads, length, size, half, q_eps, k_eps);
    });
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    return {q_out, k_out};
}
"""

declaration = """
std::vector<torch::Tensor> run(torch::Tensor q, torch::Tensor k, torch::Tensor q_weight, torch::Tensor k_weight,
                               torch::Tensor cosine, torch::Tensor sine, double q_eps, double k_eps);
"""

extension = load_inline(
    name=NAME,
    cpp_sources=declaration,
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=FLAGS,
)


class ModelNew(nn.Module):
    def __init__(self, length: int, head_size: int, turned: int):
        super().__init__()
        self.q_norm, self.k_norm = nn.RMSNorm(head_size, eps=1e-6), nn.RMSNorm(head_size, eps=1e-6)
        rates = 10000 ** -(torch.arange(0, turned, 2).float() / turned)
        angles = torch.outer(torch.arange(length).float(), rates)[:, None]
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.turned = turned

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        q_out, k_out = extension.run(
            q, k, self.q_norm.weight, self.k_norm.weight, self.cos, self.sin, self.q_norm.eps, self.k_norm.eps
        )
        return q_out, k_out


def qk_norm_rotary(q, k, q_weight, k_weight, cos, sin, eps=1e-6):
    """RMS norm and rotary embedding of queries and keys [batch, length, heads, size]; cos and sin are
    [length, 1, turned / 2]."""
    return tuple(extension.run(q, k, q_weight, k_weight, cos, sin, eps, eps))
