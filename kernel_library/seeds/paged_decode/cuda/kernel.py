"""Paged decode: one CTA per kv head and slice of the flattened pages, eight warps that each take every eighth page of the
slice and fill their own ring in shared memory
(cp.async, 16 bytes per lane).
Pages beyond the length of a sequence are never read; only its last page is masked."""
import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

NAME = "paged_decode_slices_async"
STAGES = 3
CONFIGS = {"STAGES": [2, 3]}

cuda_source = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <cmath>
#include <algorithm>

typedef __nv_bfloat16 bf16;
constexpr unsigned FULL = 0xffffffffu;
constexpr int MAX_SMEM = 232448;
constexpr int PAGE = 16;
constexpr int WARPS = 8;
constexpr int SLOT_HEADS = 4;  // heads per kv head in the workspace

// bytes from row to row in shared memory; the 16-byte chunk x of row r lies at x ^ (r % 8)
__host__ __device__ constexpr int pitch_of(int D) { return D * 2; }
__host__ __device__ constexpr int stage_bytes_of(int D) { return 2 * PAGE * pitch_of(D); }
__host__ __device__ constexpr int exchange_floats_of(int D) { return WARPS * SLOT_HEADS * (D + 2); }

__device__ __forceinline__ uint32_t smem_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void copy16(uint32_t dst, const void* src) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(dst), "l"(src) : "memory");
}
__device__ __forceinline__ void commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int N>
__device__ __forceinline__ void wait_group() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }
__device__ __forceinline__ void ldmatrix4(uint32_t (&a)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void ldmatrix4_trans(uint32_t (&a)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ uint32_t pack(float x, float y) {
    __nv_bfloat162 both = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<uint32_t*>(&both);
}
// columns 0-3 of P hold the rounded weights, columns 4-7 what the rounding has lost
__device__ __forceinline__ float part_of(float p, bool low) {
    return low ? p - __bfloat162float(__float2bfloat16_rn(p)) : p;
}
__device__ __forceinline__ int clamp_length(int64_t length, int64_t most) {
    return (int)(length < 0 ? 0 : (length > most ? most : length));
}

template <int D>
__global__ void __launch_bounds__(WARPS * 32, 1) paged_fast(
    const bf16* __restrict__ q, const bf16* __restrict__ k, const bf16* __restrict__ v,
    const int64_t* __restrict__ table, const int64_t* __restrict__ lengths, bf16* __restrict__ out,
    float* __restrict__ part_acc, float* __restrict__ part_ml, int* __restrict__ counters,
    int batch, int kv_heads, int group, int pages_each, int64_t pool, float c) {
    extern __shared__ __align__(1024) unsigned char smem[];
    constexpr int PITCH = pitch_of(D);
    constexpr int HALF = PAGE * PITCH;
    constexpr int STAGE_BYTES = stage_bytes_of(D);
    float* ex = reinterpret_cast<float*>(smem + WARPS * STAGES * STAGE_BYTES);  // acc of warp w and head j: (w * 4 + j) * D
    float* ex_ml = ex + WARPS * SLOT_HEADS * D;                                 // m and l of warp w and head j
    int* flag = reinterpret_cast<int*>(ex_ml + WARPS * SLOT_HEADS * 2);
    int* pre = flag + 1;  // batch + 1

    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int slice = (int)blockIdx.x / kv_heads, head = (int)blockIdx.x % kv_heads;
    const int most_slices = (int)gridDim.x / kv_heads;

    if (warp == 0) {
        __syncwarp();
        int sum = 0;
        for (int first = 0; first < batch; first += 32) {
            const int b = first + lane;
            int n = 0;
            if (b < batch) n = (clamp_length(lengths[b], (int64_t)pages_each * PAGE) + PAGE - 1) / PAGE;
            int inclusive = n;
            for (int o = 1; o < 32; o <<= 1) {
                const int y = __shfl_up_sync(FULL, inclusive, o);
                if (lane >= o) inclusive += y;
            }
            if (b < batch) pre[b + 1] = sum + inclusive;
            sum += __shfl_sync(FULL, inclusive, 31);
        }
        if (lane == 0) pre[0] = 0;
    }
    __syncthreads();

    const int heads = kv_heads * group;
    const int total = pre[batch];
    for (int b = slice; b < batch; b += most_slices)
        if (pre[b] == pre[b + 1])
            for (int i = threadIdx.x; i < group * D; i += WARPS * 32)
                out[((int64_t)b * heads + head * group) * D + i] = __float2bfloat16_rn(0.f);
    const int slices = min(most_slices, total);
    if (slice >= slices) return;
    const int lo = (int)((int64_t)total * slice / slices);
    const int hi = (int)((int64_t)total * (slice + 1) / slices);

    // the sequence that page x belongs to: the smallest b with pre[b + 1] > x
    auto sequence_of = [&](int x) {
        int a = 0, z = batch - 1;
        while (a < z) {
            const int mid = (a + z) >> 1;
            if (pre[mid + 1] > x) z = mid; else a = mid + 1;
        }
        return a;
    };

    // the ring of this warp: its page i is page lo + warp + i * WARPS of all
    const int count = (hi - lo - warp + WARPS - 1) / WARPS;  // may be 0
    const uint32_t ring = smem_address(smem) + warp * (STAGES * STAGE_BYTES);
    auto id_of = [&](int i) -> int64_t {
        if (i >= count) return 0;
        const int x = lo + warp + i * WARPS;
        const int b = sequence_of(x);
        return table[(int64_t)b * pages_each + (x - pre[b])];
    };
    int64_t current = id_of(lane), next = 0;
    constexpr int CHUNKS = D / 8;      // 16-byte chunks of a row
    constexpr int ROWS = 32 / CHUNKS;  // rows that one instruction of the warp copies
    const int row = lane / CHUNKS, chunk = lane % CHUNKS;
    const int64_t at_lane = ((int64_t)row * kv_heads + head) * D + chunk * 8;
    const int64_t page_size = (int64_t)PAGE * kv_heads * D;
    auto issue = [&](int i) {
        if ((i & 31) == 0) {
            if (i) current = next;
            next = id_of(i + 32 + lane);
        }
        int64_t id = (int64_t)__shfl_sync(FULL, (long long)current, i & 31);
        if (id < 0) id += pool;
        const uint32_t stage = ring + (i % STAGES) * STAGE_BYTES;
        const bf16* k_from = k + id * page_size + at_lane;
        const bf16* v_from = v + id * page_size + at_lane;
#pragma unroll
        for (int r = 0; r < PAGE; r += ROWS)
            copy16(stage + (r + row) * PITCH + ((chunk ^ ((r + row) & 7)) << 4), k_from + (int64_t)r * kv_heads * D);
#pragma unroll
        for (int r = 0; r < PAGE; r += ROWS)
            copy16(stage + HALF + (r + row) * PITCH + ((chunk ^ ((r + row) & 7)) << 4), v_from + (int64_t)r * kv_heads * D);
    };
    for (int i = 0; i < STAGES; ++i) {
        if (i < count) issue(i);
        commit_group();
    }

    const int g = lane >> 2, t = lane & 3;
    const bool low = t >= 2;
    const uint32_t k_lane = (lane & 15) * PITCH;
    const uint32_t v_lane = HALF + ((lane & 7) + (lane >> 4) * 8) * PITCH;
    const uint32_t k_swizzle = ((lane & 7) ^ (lane >> 4)) << 4;
    const uint32_t v_swizzle = ((lane & 7) ^ ((lane >> 3) & 1)) << 4;

    int b = sequence_of(lo);
    int it = 0;
    for (int x = lo; x < hi; ++b) {
        const int seq_lo = pre[b], seq_hi = pre[b + 1];
        if (seq_hi <= x) continue;
        const int end = min(hi, seq_hi);
        const int length = clamp_length(lengths[b], (int64_t)pages_each * PAGE);
        const int offset = x - lo, span = end - x;  // warp w has a page of this part if ((w - offset) & 7) < span

        // q as the B factor: column g is head g % 4, so columns 4-7 repeat columns 0-3
        uint32_t qf[D / 16][2];
        {
            const int j = g & 3;
            const bf16* from = q + ((int64_t)b * heads + head * group + (j < group ? j : 0)) * D + 2 * t;
#pragma unroll
            for (int ks = 0; ks < D / 16; ++ks) {
                qf[ks][0] = j < group ? *reinterpret_cast<const uint32_t*>(from + ks * 16) : 0u;
                qf[ks][1] = j < group ? *reinterpret_cast<const uint32_t*>(from + ks * 16 + 8) : 0u;
            }
        }
        float acc[D / 16][4];
#pragma unroll
        for (int mt = 0; mt < D / 16; ++mt)
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[mt][i] = 0.f;
        float m0 = -INFINITY, m1 = -INFINITY, l0 = 0.f, l1 = 0.f;

        for (int page = lo + warp + it * WARPS; page < end; page += WARPS, ++it) {
            const int s = it % STAGES;
            wait_group<STAGES - 1>();
            __syncwarp();
            const uint32_t stage = ring + s * STAGE_BYTES;
            float sc[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
            for (int ks = 0; ks < D / 16; ++ks) {
                uint32_t a[4];
                ldmatrix4(a, stage + k_lane + (k_swizzle ^ (ks * 32)));
                mma(sc, a, qf[ks][0], qf[ks][1]);
            }
            const int first = (page - seq_lo) * PAGE;
            if (first + PAGE > length) {
                if (first + g >= length) { sc[0] += -INFINITY; sc[1] += -INFINITY; }
                if (first + g + 8 >= length) { sc[2] += -INFINITY; sc[3] += -INFINITY; }
            }
            float n0 = fmaxf(sc[0], sc[2]), n1 = fmaxf(sc[1], sc[3]);
#pragma unroll
            for (int o = 4; o < 32; o <<= 1) {
                n0 = fmaxf(n0, __shfl_xor_sync(FULL, n0, o));
                n1 = fmaxf(n1, __shfl_xor_sync(FULL, n1, o));
            }
            n0 = fmaxf(n0, m0);
            n1 = fmaxf(n1, m1);
            const float u0 = n0 == -INFINITY ? 0.f : n0, u1 = n1 == -INFINITY ? 0.f : n1;
            const float a0 = exp2f((m0 - u0) * c), a1 = exp2f((m1 - u1) * c);
            m0 = n0;
            m1 = n1;
            const float p0 = exp2f((sc[0] - u0) * c), p1 = exp2f((sc[1] - u1) * c);
            const float p2 = exp2f((sc[2] - u0) * c), p3 = exp2f((sc[3] - u1) * c);
            l0 = l0 * a0 + (p0 + p2);
            l1 = l1 * a1 + (p1 + p3);
            const uint32_t b0 = transpose8x8(pack(part_of(p0, low), part_of(p1, low)));
            const uint32_t b1 = transpose8x8(pack(part_of(p2, low), part_of(p3, low)));
#pragma unroll
            for (int mt = 0; mt < D / 16; ++mt) {
                uint32_t a[4];
                ldmatrix4_trans(a, stage + v_lane + (v_swizzle ^ (mt * 32)));
                acc[mt][0] *= a0;
                acc[mt][1] *= a1;
                acc[mt][2] *= a0;
                acc[mt][3] *= a1;
                mma(acc[mt], a, b0, b1);
            }
            __syncwarp();
            if (it + STAGES < count) issue(it + STAGES);
            commit_group();
        }

        // l of each column over the token rows
#pragma unroll
        for (int o = 4; o < 32; o <<= 1) {
            l0 += __shfl_xor_sync(FULL, l0, o);
            l1 += __shfl_xor_sync(FULL, l1, o);
        }
        // hi + lo; lo does not count where hi is infinite or NaN
#pragma unroll
        for (int mt = 0; mt < D / 16; ++mt)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float rest = __shfl_xor_sync(FULL, acc[mt][i], 2);
                if (isfinite(acc[mt][i])) acc[mt][i] += rest;
            }
        if (t < 2) {
#pragma unroll
            for (int mt = 0; mt < D / 16; ++mt)
#pragma unroll
                for (int i = 0; i < 4; ++i)
                    ex[(warp * SLOT_HEADS + 2 * t + (i & 1)) * D + mt * 16 + g + (i >> 1) * 8] = acc[mt][i];
            if (g == 0) {
                float* ml = ex_ml + (warp * SLOT_HEADS + 2 * t) * 2;
                ml[0] = m0;
                ml[1] = l0;
                ml[2] = m1;
                ml[3] = l1;
            }
        }
        __syncthreads();

        const int c_first = (int)(((int64_t)(seq_lo + 1) * slices - 1) / total);
        const int c_last = (int)(((int64_t)seq_hi * slices - 1) / total);
        const bool whole = c_first == c_last;
        // partial result: slot 1 of the slice where the sequence begins, slot 0 of the others
        auto slot_of = [&](int part, int j) {
            return ((int64_t)(2 * part + (part == c_first ? 1 : 0)) * kv_heads + head) * SLOT_HEADS + j;
        };
        bf16* to = out + ((int64_t)b * heads + head * group) * D;
        // the states of the warps become one
        for (int e = threadIdx.x; e < group * D; e += WARPS * 32) {
            const int j = e / D, dim = e % D;
            float most = -INFINITY;
#pragma unroll
            for (int w = 0; w < WARPS; ++w)
                if (((w - offset) & (WARPS - 1)) < span) most = fmaxf(most, ex_ml[(w * SLOT_HEADS + j) * 2]);
            const float used = most == -INFINITY ? 0.f : most;
            float l = 0.f, o = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w)
                if (((w - offset) & (WARPS - 1)) < span) {
                    const float weight = exp2f((ex_ml[(w * SLOT_HEADS + j) * 2] - used) * c);
                    l += weight * ex_ml[(w * SLOT_HEADS + j) * 2 + 1];
                    o += weight * ex[(w * SLOT_HEADS + j) * D + dim];
                }
            if (whole) {
                to[e] = __float2bfloat16_rn(o / (l == 0.f ? 1.f : l));
            } else {
                const int64_t at = slot_of(slice, j);
                part_acc[at * D + dim] = o;
                if (dim == 0) {
                    part_ml[at * 2] = most;
                    part_ml[at * 2 + 1] = l;
                }
            }
        }
        x = end;
        if (whole) {
            __syncthreads();  // the exchange buffer is free again
            continue;
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) *flag = atomicAdd(&counters[(int64_t)b * kv_heads + head], 1);
        __syncthreads();
        if (*flag != c_last - c_first) continue;
        __threadfence();

        // the last slice of the sequence merges, four partial results at a time
        for (int e = threadIdx.x; e < group * D; e += WARPS * 32) {
            const int j = e / D, dim = e % D;
            float most = -INFINITY, l = 0.f, o = 0.f;
            for (int from = c_first; from <= c_last; from += 4) {
                float pm[4], pl[4], po[4];
#pragma unroll
                for (int r = 0; r < 4; ++r) {
                    pm[r] = -INFINITY;
                    pl[r] = po[r] = 0.f;
                    if (from + r <= c_last) {
                        const int64_t at = slot_of(from + r, j);
                        pm[r] = __ldcg(part_ml + at * 2);
                        pl[r] = __ldcg(part_ml + at * 2 + 1);
                        po[r] = __ldcg(part_acc + at * D + dim);
                    }
                }
                float n = most;
#pragma unroll
                for (int r = 0; r < 4; ++r) n = fmaxf(n, pm[r]);
                const float used = n == -INFINITY ? 0.f : n;
                const float before = exp2f((most - used) * c);
                l *= before;
                o *= before;
#pragma unroll
                for (int r = 0; r < 4; ++r)
                    if (from + r <= c_last) {
                        const float weight = exp2f((pm[r] - used) * c);
                        l += weight * pl[r];
                        o += weight * po[r];
                    }
                most = n;
            }
            to[e] = __float2bfloat16_rn(o / (l == 0.f ? 1.f : l));
        }
    }
}

// ---- any other shape ----
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ void store(float* p, float x) { *p = x; }
__device__ __forceinline__ void store(bf16* p, float x) { *p = __float2bfloat16_rn(x); }
__device__ __forceinline__ void store(__half* p, float x) { *p = __float2half_rn(x); }

template <typename S>
__global__ void __launch_bounds__(128) paged_generic(
    const S* __restrict__ q, const S* __restrict__ k, const S* __restrict__ v, const int64_t* __restrict__ table,
    const int64_t* __restrict__ lengths, S* __restrict__ out, int heads, int kv_heads, int D, int page, int pages_each,
    int64_t pool, float scale) {
    extern __shared__ float gs[];  // q, then one accumulator per warp
    __shared__ float sm[4], sl[4];
    const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
    const int64_t b = blockIdx.x / heads;
    const int h = blockIdx.x % heads;
    const int kvh = h / (heads / kv_heads);
    float* qs = gs;
    float* acc = gs + (int64_t)(1 + warp) * D;
    for (int i = threadIdx.x; i < D; i += 128) qs[i] = to_float(q[(b * heads + h) * D + i]);
    for (int i = lane; i < D; i += 32) acc[i] = 0.f;
    __syncthreads();
    const int64_t most = (int64_t)pages_each * page;
    const int64_t given = lengths[b];
    const int64_t length = given < 0 ? 0 : (given > most ? most : given);
    const int64_t end = (length + page - 1) / page * page;
    float m = -INFINITY, l = 0.f;
    for (int64_t token = warp; token < end; token += 4) {
        int64_t id = table[b * pages_each + token / page];
        if (id < 0) id += pool;
        const int64_t at = ((id * page + token % page) * kv_heads + kvh) * D;
        float s = 0.f;
        for (int i = lane; i < D; i += 32) s += qs[i] * to_float(k[at + i]);
        for (int o = 16; o; o >>= 1) s += __shfl_xor_sync(FULL, s, o);
        s *= scale;
        if (token >= length) s += -INFINITY;
        const float n = fmaxf(m, s);
        const float u = n == -INFINITY ? 0.f : n;
        const float a = expf(m - u), p = expf(s - u);
        m = n;
        l = l * a + p;
        for (int i = lane; i < D; i += 32) acc[i] = acc[i] * a + p * to_float(v[at + i]);
    }
    if (lane == 0) { sm[warp] = m; sl[warp] = l; }
    __syncthreads();
    const float all = fmaxf(fmaxf(sm[0], sm[1]), fmaxf(sm[2], sm[3]));
    const float used = all == -INFINITY ? 0.f : all;
    float w[4], sum = 0.f;
    for (int i = 0; i < 4; ++i) { w[i] = expf(sm[i] - used); sum += w[i] * sl[i]; }
    if (sum == 0.f) sum = 1.f;
    for (int i = threadIdx.x; i < D; i += 128) {
        float o = 0.f;
        for (int x = 0; x < 4; ++x) o += w[x] * gs[(int64_t)(1 + x) * D + i];
        store(out + (b * heads + h) * D + i, o / sum);
    }
}

template <int D>
static void launch_fast(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& table,
                        const torch::Tensor& lengths, torch::Tensor& out, int kv_heads, int smem) {
    static const cudaError_t ready = cudaFuncSetAttribute(paged_fast<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, MAX_SMEM);
    C10_CUDA_CHECK(ready);
    auto stream = at::cuda::getCurrentCUDAStream();
    const int batch = (int)q.size(0), heads = (int)q.size(1);
    const int slices = std::max(1, at::cuda::getCurrentDeviceProperties()->multiProcessorCount / kv_heads);
    const int64_t rows = (int64_t)2 * slices * kv_heads * SLOT_HEADS;
    auto work = torch::empty({rows * (D + 2) + (int64_t)batch * kv_heads}, q.options().dtype(torch::kFloat32));
    float* acc = work.data_ptr<float>();
    float* ml = acc + rows * D;
    int* counters = reinterpret_cast<int*>(ml + rows * 2);
    C10_CUDA_CHECK(cudaMemsetAsync(counters, 0, (size_t)batch * kv_heads * sizeof(int), stream));
    const float c = (float)(1.4426950408889634 / std::sqrt((double)D));
    paged_fast<D><<<slices * kv_heads, WARPS * 32, smem, stream>>>(
        reinterpret_cast<const bf16*>(q.data_ptr()), reinterpret_cast<const bf16*>(k.data_ptr()),
        reinterpret_cast<const bf16*>(v.data_ptr()), table.data_ptr<int64_t>(), lengths.data_ptr<int64_t>(),
        reinterpret_cast<bf16*>(out.data_ptr()), acc, ml, counters, batch, kv_heads, heads / kv_heads, (int)table.size(1),
        k.size(0), c);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename S>
static void launch_generic(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& table,
                           const torch::Tensor& lengths, torch::Tensor& out) {
    const int batch = (int)q.size(0), heads = (int)q.size(1), D = (int)q.size(2);
    paged_generic<S><<<batch * heads, 128, 5 * D * sizeof(float), at::cuda::getCurrentCUDAStream()>>>(
        reinterpret_cast<const S*>(q.data_ptr()), reinterpret_cast<const S*>(k.data_ptr()),
        reinterpret_cast<const S*>(v.data_ptr()), table.data_ptr<int64_t>(), lengths.data_ptr<int64_t>(),
        reinterpret_cast<S*>(out.data_ptr()), heads, (int)k.size(2), D, (int)k.size(1), (int)table.size(1), k.size(0),
        (float)(1.0 / std::sqrt((double)D)));
    C10_CUDA_KERNEL_LAUNCH_CHECK();
}

torch::Tensor run(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor table, torch::Tensor lengths) {
    auto out = torch::empty({q.size(0), q.size(1), q.size(2)}, q.options());
    if (out.numel() == 0) return out;
    const int64_t batch = q.size(0), heads = q.size(1), D = q.size(2), kv_heads = k.size(2), pages_each = table.size(1);
    auto aligned = [](const torch::Tensor& x) { return reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 == 0; };
    const int64_t smem = (int64_t)WARPS * STAGES * stage_bytes_of((int)D) + 4 * exchange_floats_of((int)D) +
                         4 * (batch + 2);
    const bool fast = q.scalar_type() == at::kBFloat16 && k.size(1) == PAGE && (D == 64 || D == 128) &&
                      heads / kv_heads <= SLOT_HEADS && smem <= MAX_SMEM && aligned(q) && aligned(k) && aligned(v) &&
                      batch * pages_each * PAGE < (1LL << 31);
    if (fast && D == 128) launch_fast<128>(q, k, v, table, lengths, out, (int)kv_heads, (int)smem);
    else if (fast) launch_fast<64>(q, k, v, table, lengths, out, (int)kv_heads, (int)smem);
    else if (q.scalar_type() == at::kBFloat16) launch_generic<bf16>(q, k, v, table, lengths, out);
    else if (q.scalar_type() == at::kHalf) launch_generic<__half>(q, k, v, table, lengths, out);
    else launch_generic<float>(q, k, v, table, lengths, out);
    return out;
}
"""
extension = load_inline(
    name=NAME,
    cpp_sources="torch::Tensor run(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor table, torch::Tensor lengths);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3", f"-DSTAGES={STAGES}"],
)


def supports(q, k_pages, v_pages, table, lengths):
    return (
        q.is_cuda
        and q.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and k_pages.dtype == q.dtype
        and v_pages.dtype == q.dtype
        and q.dim() == 3
        and k_pages.dim() == 4
        and k_pages.shape == v_pages.shape
        and k_pages.shape[3] == q.shape[2]
        and q.shape[2] <= 2048
        and k_pages.shape[2] > 0
        and q.shape[1] % k_pages.shape[2] == 0
        and q.shape[0] * q.shape[1] < 2**31
    )


class ModelNew(nn.Module):
    def forward(
        self,
        q: torch.Tensor,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        table: torch.Tensor,
        lengths: torch.Tensor,
    ) -> torch.Tensor:
        return extension.run(
            q.contiguous(),
            k_pages.contiguous(),
            v_pages.contiguous(),
            table.to(torch.int64).contiguous(),
            lengths.to(torch.int64).contiguous(),
        )
