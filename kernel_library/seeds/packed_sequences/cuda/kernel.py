"""Packed causal attention, greedy mapping, variant 2: 128 rows per tile, 2 consumer warpgroups, 128 keys per step; a warp of
each CTA simulates a greedy assignment of the tiles, longest first, and hands its CTA's tiles to the producer."""

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

NAME = "packed_attention_greedy"

cuda_source = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>
#include <cmath>
#include <cstdint>

constexpr int ROWS = 128;      // rows of a tile: tokens times the heads of one kv head
constexpr int BN = 128;        // keys per step
constexpr int STAGES = 2;      // of K and of V
constexpr int GROUPS = 2;      // consumer warpgroups
constexpr int REGS_CONSUMER = 232;
constexpr int REGS_PRODUCER = 40;
constexpr int D = 128;
constexpr int QSTAGES = 2;
constexpr int RING = 8;         // tiles between the warp that assigns and the one that loads
constexpr int THREADS = 128 * (GROUPS + 1);
constexpr int WARPS = THREADS / 32;
constexpr int Q_BYTES = ROWS * D * 2;
constexpr int KV_BYTES = BN * D * 2;
constexpr int SMEM_BYTES = QSTAGES * Q_BYTES + 2 * STAGES * KV_BYTES + 512 + 1024;
constexpr int HALVES = BN / 64;   // TMA boxes of 64 keys per step
#define INF __int_as_float(0x7f800000)
typedef __nv_bfloat16 bf16;

__device__ __forceinline__ uint32_t smem_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void barrier_init(uint32_t bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect(uint32_t bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity) {
    uint32_t done;
    do {
        asm volatile("{\n.reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n}\n"
                     : "=r"(done) : "r"(bar), "r"(parity) : "memory");
    } while (!done);
}
__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 :: "r"(dst), "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(c0), "r"(c1), "r"(c2) : "memory");
}

// 128-byte swizzle. sbo is the distance of groups of 8 rows, lbo that of panels of 64 columns (used by V only).
__device__ __forceinline__ uint64_t descriptor(uint32_t address, uint32_t lbo, uint32_t sbo) {
    return (uint64_t)((address & 0x3FFFF) >> 4) | ((uint64_t)(lbo >> 4) << 16) | ((uint64_t)(sbo >> 4) << 32) | (1ull << 62);
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int LEFT> __device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;\n" :: "n"(LEFT) : "memory");
}
template <int N> __device__ __forceinline__ void fence_registers(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}

#define LIST32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
               "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST64 LIST32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
               "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ACC8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                   "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC32(d, i) ACC8(d, i), ACC8(d, i + 8), ACC8(d, i + 16), ACC8(d, i + 24)

template <int SN>
__device__ __forceinline__ void mma_ss_n64(float (&d)[SN], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" LIST32 "}, %32, %33, p, 1, 1, 0, 0;\n}\n"
                 : ACC32(d, 0) : "l"(a), "l"(b), "r"(add));
}
template <int SN>
__device__ __forceinline__ void mma_ss_n128(float (&d)[SN], uint64_t a, uint64_t b, int add) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LIST64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
                 : ACC32(d, 0), ACC32(d, 32) : "l"(a), "l"(b), "r"(add));
}
// A from registers, B transposed: rows of B in memory are keys.
__device__ __forceinline__ void mma_rs_n128(float (&d)[64], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" LIST64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
                 : ACC32(d, 0), ACC32(d, 32) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));
}

// S = Q K^T for 64 rows and N keys
template <int N, int SN>
__device__ __forceinline__ void scores(float (&s)[SN], uint64_t q, uint64_t k) {
#pragma unroll
    for (int step = 0; step < D / 16; ++step) {
        const uint64_t a = q + (step / 4) * (ROWS * 128 / 16) + (step % 4) * 2;
        const uint64_t b = k + (step / 4) * (BN * 128 / 16) + (step % 4) * 2;
        if constexpr (N == 128) mma_ss_n128(s, a, b, step > 0 ? 1 : 0);
        else mma_ss_n64(s, a, b, step > 0 ? 1 : 0);
    }
}
// O += P V for 64 rows and N keys
template <int N, int PN>
__device__ __forceinline__ void accumulate(float (&o)[64], uint32_t (&p)[PN], uint64_t v) {
#pragma unroll
    for (int step = 0; step < N / 16; ++step)
        mma_rs_n128(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3], v + step * (16 * 128 / 16));
}

__device__ __forceinline__ float exp2_fast(float x) {  // off by two units in the last place
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ uint32_t pack2(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

// keys beyond last0 (first row of the thread) or last1 (second row) are not seen
template <int N, int SN>
__device__ __forceinline__ void hide(float (&s)[SN], int last0, int last1, int column) {
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            const int key = 8 * i + column + e;
            if (key > last0) s[4 * i + e] = -INF;
            if (key > last1) s[4 * i + 2 + e] = -INF;
        }
    }
}

// s becomes exp(s - maximum); top is the running maximum times c, rounded once; l the sum of this thread's columns
template <int N, int SN>
__device__ __forceinline__ void softmax(float (&s)[SN], float (&top)[2], float (&l)[2], float (&alpha)[2], float c) {
    float x0 = fmaxf(s[0], s[1]), x1 = fmaxf(s[2], s[3]);
#pragma unroll
    for (int i = 1; i < N / 8; ++i) {
        x0 = fmaxf(x0, fmaxf(s[4 * i], s[4 * i + 1]));
        x1 = fmaxf(x1, fmaxf(s[4 * i + 2], s[4 * i + 3]));
    }
    x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, 1));
    x1 = fmaxf(x1, __shfl_xor_sync(0xffffffffu, x1, 1));
    x0 = fmaxf(x0, __shfl_xor_sync(0xffffffffu, x0, 2));
    x1 = fmaxf(x1, __shfl_xor_sync(0xffffffffu, x1, 2));
    const float new0 = fmaxf(top[0], x0 * c), new1 = fmaxf(top[1], x1 * c);
    const float base0 = new0 == -INF ? 0.f : new0, base1 = new1 == -INF ? 0.f : new1;
    alpha[0] = exp2_fast(top[0] - base0);
    alpha[1] = exp2_fast(top[1] - base1);
    top[0] = new0;
    top[1] = new1;
    float sum0[2] = {0.f, 0.f}, sum1[2] = {0.f, 0.f};
#pragma unroll
    for (int i = 0; i < N / 8; ++i) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
            s[4 * i + e] = exp2_fast(fmaf(s[4 * i + e], c, -base0));
            s[4 * i + 2 + e] = exp2_fast(fmaf(s[4 * i + 2 + e], c, -base1));
            sum0[e] += s[4 * i + e];
            sum1[e] += s[4 * i + 2 + e];
        }
    }
    l[0] = l[0] * alpha[0] + (sum0[0] + sum0[1]);
    l[1] = l[1] * alpha[1] + (sum1[0] + sum1[1]);
}

// accumulator layout of S to the layout of A
template <int N, int SN, int PN>
__device__ __forceinline__ void pack(uint32_t (&p)[PN], float (&s)[SN]) {
#pragma unroll
    for (int i = 0; i < N / 16; ++i) {
        p[4 * i] = pack2(s[8 * i], s[8 * i + 1]);
        p[4 * i + 1] = pack2(s[8 * i + 2], s[8 * i + 3]);
        p[4 * i + 2] = pack2(s[8 * i + 4], s[8 * i + 5]);
        p[4 * i + 3] = pack2(s[8 * i + 6], s[8 * i + 7]);
    }
}
__device__ __forceinline__ void rescale(float (&o)[64], float (&alpha)[2]) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        o[4 * i] *= alpha[0];
        o[4 * i + 1] *= alpha[0];
        o[4 * i + 2] *= alpha[1];
        o[4 * i + 3] *= alpha[1];
    }
}

__device__ __forceinline__ bool not_finite(uint32_t two) {  // of two bfloat16
    return (((two & 0x7f807f80u) + 0x00800080u) & 0x80008000u) != 0;
}

// whether the starts ascend
__device__ __forceinline__ bool in_order(const long long* starts, int n, int lane) {
    int yes = 1;
    for (int i = lane; i + 1 < n; i += 32) yes &= starts[i] <= starts[i + 1] ? 1 : 0;
    return __all_sync(0xffffffffu, yes);
}
// Sequence s of n + 1: before the first start, between two starts, after the last. In general, the places for which the
// reference's binary search ends at s: the way to s depends on s alone, and each step bounds the places that take it, so that
// the ranges are disjoint and cover all places even if the starts do not ascend.
__device__ __forceinline__ void bounds(const long long* starts, int n, int tokens, bool sorted, int s, int& low, int& high) {
    low = 0;
    high = 0;
    if (s > n) return;
    high = tokens;
    if (sorted) {
        if (s > 0) low = (int)min(max(starts[s - 1], 0ll), (long long)tokens);
        if (s < n) high = (int)min(max(starts[s], 0ll), (long long)tokens);
    } else {
        int near = 0, far = n;
        while (near < far) {
            const int mid = near + (far - near) / 2;
            const int start = (int)min(max(starts[mid], 0ll), (long long)tokens);
            if (mid < s) {
                low = max(low, start);
                near = mid + 1;
            } else {
                high = min(high, start);
                far = mid;
            }
        }
    }
    high = max(high, low);
}

__global__ void __launch_bounds__(THREADS, 1)
packed_attention(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,
                 const __grid_constant__ CUtensorMap map_v, const bf16* __restrict__ k, const bf16* __restrict__ v,
                 bf16* __restrict__ out, const long long* __restrict__ starts, int n, unsigned char* __restrict__ flags,
                 int* __restrict__ summary, int tokens, int heads, int kv_heads, int shift, float c) {
    extern __shared__ unsigned char raw[];
    const uint32_t base = (smem_address(raw) + 1023u) & ~1023u;
    const uint32_t q_smem = base;
    const uint32_t k_smem = base + QSTAGES * Q_BYTES;
    const uint32_t v_smem = k_smem + STAGES * KV_BYTES;
    const uint32_t bars = v_smem + STAGES * KV_BYTES;
    const uint32_t q_full = bars, q_empty = q_full + 8 * QSTAGES;
    const uint32_t k_full = q_empty + 8 * QSTAGES, k_empty = k_full + 8 * STAGES;
    const uint32_t v_full = k_empty + 8 * STAGES, v_empty = v_full + 8 * STAGES;
    int* info = reinterpret_cast<int*>(raw + (bars + 256 - smem_address(raw)));  // 4 numbers per stage of Q
    int* ring = info + 4 * QSTAGES;                                              // 4 numbers per entry
    const uint32_t ring_full = bars + 128, ring_empty = ring_full + 8 * RING;

    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int group_tokens = ROWS >> shift;  // tokens per tile

    if (threadIdx.x == 0) {
        for (int i = 0; i < QSTAGES; ++i) {
            barrier_init(q_full + 8 * i, 1);
            barrier_init(q_empty + 8 * i, 4 * GROUPS);
        }
        for (int i = 0; i < STAGES; ++i) {
            barrier_init(k_full + 8 * i, 1);
            barrier_init(k_empty + 8 * i, 4 * GROUPS);
            barrier_init(v_full + 8 * i, 1);
            barrier_init(v_empty + 8 * i, 4 * GROUPS);
        }
        for (int i = 0; i < RING; ++i) {
            barrier_init(ring_full + 8 * i, 1);
            barrier_init(ring_empty + 8 * i, 1);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    __syncthreads();

    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" :: "n"(REGS_PRODUCER));
        if (warp < 2) {
            const bool sorted = in_order(starts, n, lane);
            int my_low, my_high;
            bounds(starts, n, tokens, sorted, lane, my_low, my_high);
            const int my_tiles = (my_high - my_low + group_tokens - 1) / group_tokens;
            // each kv head has its own CTAs, and the same assignment to them
            const int grid = gridDim.x, bins = grid / kv_heads;
            const bool greedy = bins >= 1 && bins <= 64;
            if (warp == 0) {  // loads the tiles, longest first; finds the first one itself, all of them if not greedy
                // tiles that are at least the level-th of their sequence
                auto count = [&](int level) {
                    int x = max(my_tiles - level, 0);
                    for (int s = lane + 32; s <= n; s += 32) {
                        int low, high;
                        bounds(starts, n, tokens, sorted, s, low, high);
                        x += max((high - low + group_tokens - 1) / group_tokens - level, 0);
                    }
                    return __reduce_add_sync(0xffffffffu, x);
                };
                const int total = count(0) * kv_heads;
                unsigned kv = 0, tile = 0;
                for (int round = 0;; ++round) {
                    int low = 0, high = 0, token = -1, kv_head = 0;
                    if (greedy && round > 0) {
                        const unsigned slot = (unsigned)(round - 1) % RING;
                        barrier_wait(ring_full + 8 * slot, ((unsigned)(round - 1) / RING) & 1);
                        low = ring[4 * slot];
                        high = ring[4 * slot + 1];
                        token = ring[4 * slot + 2];
                        kv_head = (int)blockIdx.x % kv_heads;
                        __syncwarp();
                        if (lane == 0) barrier_arrive(ring_empty + 8 * slot);
                        if (token < 0) break;
                    } else {
                        if ((long long)round * grid >= total) break;
                        const int item = round * grid + ((round & 1) ? grid - 1 - (int)blockIdx.x : (int)blockIdx.x);
                        if (greedy && (item >= total || item / kv_heads >= bins)) break;
                        if (item >= total) continue;
                        const int rank = item / kv_heads;
                        kv_head = item % kv_heads;
                        int level = 0, above = (tokens + group_tokens - 1) / group_tokens;
                        while (above - level > 1) {
                            const int middle = (level + above) / 2;
                            if (count(middle) > rank) level = middle;
                            else above = middle;
                        }
                        int position = rank - count(level + 1);
                        for (int first = 0; first <= n; first += 32) {
                            int a = my_low, b = my_high;
                            if (first > 0) bounds(starts, n, tokens, sorted, first + lane, a, b);
                            const bool has = (b - a + group_tokens - 1) / group_tokens > level;
                            const unsigned those = __ballot_sync(0xffffffffu, has);
                            const int found = __popc(those);
                            if (position < found) {
                                const bool mine = has && __popc(those & ((1u << lane) - 1u)) == position;
                                const int source = __ffs(__ballot_sync(0xffffffffu, mine)) - 1;
                                low = __shfl_sync(0xffffffffu, a, source);
                                high = __shfl_sync(0xffffffffu, b, source);
                                break;
                            }
                            position -= found;
                        }
                        token = low + level * group_tokens;
                    }
                    if (lane == 0) {
                        const unsigned qs = tile % QSTAGES;
                        barrier_wait(q_empty + 8 * qs, ((tile / QSTAGES) & 1) ^ 1);
                        info[4 * qs] = low;
                        info[4 * qs + 1] = high;
                        info[4 * qs + 2] = token;
                        info[4 * qs + 3] = kv_head;
                        barrier_expect(q_full + 8 * qs, Q_BYTES);
                        for (int panel = 0; panel < 2; ++panel)
                            tma_load(q_smem + qs * Q_BYTES + panel * (ROWS * 128), &map_q, q_full + 8 * qs,
                                     64 * panel, kv_head << shift, token);
                        const int halves = (min(token + group_tokens, high) - low + 63) / 64;
                        for (int first = 0; first < halves; first += HALVES) {
                            const unsigned st = kv % STAGES, parity = ((kv / STAGES) & 1) ^ 1;
                            const int those = min(HALVES, halves - first);
                            barrier_wait(k_empty + 8 * st, parity);
                            barrier_expect(k_full + 8 * st, those * (64 * D * 2));
                            for (int half = 0; half < those; ++half)
                                for (int panel = 0; panel < 2; ++panel)
                                    tma_load(k_smem + st * KV_BYTES + panel * (BN * 128) + half * 8192, &map_k, k_full + 8 * st,
                                             64 * panel, kv_head, low + (first + half) * 64);
                            barrier_wait(v_empty + 8 * st, parity);
                            barrier_expect(v_full + 8 * st, those * (64 * D * 2));
                            for (int half = 0; half < those; ++half)
                                for (int panel = 0; panel < 2; ++panel)
                                    tma_load(v_smem + st * KV_BYTES + panel * (BN * 128) + half * 8192, &map_v, v_full + 8 * st,
                                             64 * panel, kv_head, low + (first + half) * 64);
                            ++kv;
                        }
                    }
                    ++tile;
                    __syncwarp();
                }
                if (lane == 0) {
                    const unsigned qs = tile % QSTAGES;
                    barrier_wait(q_empty + 8 * qs, ((tile / QSTAGES) & 1) ^ 1);
                    info[4 * qs + 2] = -1;  // no more tiles
                    barrier_arrive(q_full + 8 * qs);
                    summary[blockIdx.x * WARPS] = 0;
                }
            } else {
                if (greedy) {  // assigns each tile, in order, to the bin with the least load: a CTA of each kv head
                    const int my_bin = (int)blockIdx.x / kv_heads;
                    unsigned load0 = lane < bins ? (unsigned)lane : 0xffffffffu;  // load << 8 | bin
                    unsigned load1 = lane + 32 < bins ? (unsigned)(lane + 32) : 0xffffffffu;
                    unsigned given = 0;
                    bool skip = true;  // the producer has found the first tile itself
                    auto give = [&](int low, int high, int token) {
                        const unsigned slot = given % RING;
                        barrier_wait(ring_empty + 8 * slot, ((given / RING) & 1) ^ 1);
                        if (lane == 0) {
                            ring[4 * slot] = low;
                            ring[4 * slot + 1] = high;
                            ring[4 * slot + 2] = token;
                            barrier_arrive(ring_full + 8 * slot);
                        }
                        __syncwarp();
                        ++given;
                    };
                    int most = my_tiles;
                    for (int s = lane + 32; s <= n; s += 32) {
                        int low, high;
                        bounds(starts, n, tokens, sorted, s, low, high);
                        most = max(most, (high - low + group_tokens - 1) / group_tokens);
                    }
                    most = __reduce_max_sync(0xffffffffu, most);
                    for (int level = most - 1; level >= 0; --level) {
                        // half steps, and two for the ends of a tile
                        const unsigned weight = (unsigned)(((level + 1) * group_tokens + 63) / 64 + 2) << 8;
                        for (int first = 0; first <= n; first += 32) {
                            int a = my_low, b = my_high;
                            if (first > 0) bounds(starts, n, tokens, sorted, first + lane, a, b);
                            unsigned those = __ballot_sync(0xffffffffu, (b - a + group_tokens - 1) / group_tokens > level);
                            while (those) {
                                const int source = __ffs(those) - 1;
                                those &= those - 1;
                                const int bin = (int)(__reduce_min_sync(0xffffffffu, min(load0, load1)) & 255u);
                                if (bin == lane) load0 += weight;
                                if (bin == lane + 32) load1 += weight;
                                if (bin == my_bin) {
                                    const int low = __shfl_sync(0xffffffffu, a, source);
                                    const int high = __shfl_sync(0xffffffffu, b, source);
                                    if (!skip) give(low, high, low + level * group_tokens);
                                    skip = false;
                                }
                            }
                        }
                    }
                    give(0, 0, -1);  // no more tiles
                }
                if (lane == 0) summary[blockIdx.x * WARPS + 1] = 0;
            }
        } else {  // look for infinities and NaN in k and v: bit 0 and 1 of a flag for each token and kv head
            const long long pairs = (long long)tokens * kv_heads;
            const bf16* source = (lane < 16 ? k : v) + (lane & 15) * 8;
            uint32_t any = 0;
            for (long long p = ((long long)blockIdx.x * 2 + warp - 2) * 4; p < pairs; p += (long long)gridDim.x * 8) {
                uint4 x[4];
#pragma unroll
                for (int u = 0; u < 4; ++u)
                    x[u] = __ldg(reinterpret_cast<const uint4*>(source + min(p + u, pairs - 1) * D));
                uint32_t word = 0;
#pragma unroll
                for (int u = 0; u < 4; ++u) {
                    const bool found = not_finite(x[u].x) || not_finite(x[u].y) || not_finite(x[u].z) || not_finite(x[u].w);
                    const uint32_t where = __ballot_sync(0xffffffffu, found);
                    word |= (((where & 0xffffu) ? 1u : 0u) | ((where >> 16) ? 2u : 0u)) << (8 * u);
                }
                any |= word;
                if (lane == 0) {
                    if (p + 4 <= pairs) *reinterpret_cast<uint32_t*>(flags + p) = word;
                    else
                        for (int u = 0; p + u < pairs; ++u) flags[p + u] = (unsigned char)(word >> (8 * u));
                }
            }
            if (lane == 0) summary[blockIdx.x * WARPS + warp] = any != 0;
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" :: "n"(REGS_CONSUMER));
        const int group = warp / 4 - 1;
        const int row = group * 64 + (warp % 4) * 16 + lane / 4;  // and row + 8
        const int column = 2 * (lane % 4);
        unsigned kv = 0;
        int odd = 0;
        for (unsigned tile = 0;; ++tile) {
            const unsigned qs = tile % QSTAGES;
            barrier_wait(q_full + 8 * qs, (tile / QSTAGES) & 1);
            const int low = info[4 * qs], high = info[4 * qs + 1], token = info[4 * qs + 2], kv_head = info[4 * qs + 3];
            if (token < 0) break;
            const int halves = (min(token + group_tokens, high) - low + 63) / 64;
            // places within the sequence of the thread's two rows, and of the first row of the tile
            const int place0 = token - low + (row >> shift), place1 = token - low + ((row + 8) >> shift);
            const int place = token - low;
            const uint64_t qd = descriptor(q_smem + qs * Q_BYTES + group * 8192, 16, 1024);
            float o[64], top[2] = {-INF, -INF}, l[2] = {0.f, 0.f}, alpha[2];
#pragma unroll
            for (int i = 0; i < 64; ++i) o[i] = 0.f;
            float s[64];
            uint32_t p[32];
            const int full = halves / 2;
            const bool tail = halves & 1;  // the last step has 64 keys only

#define K_DESCRIPTOR(i) descriptor(k_smem + ((i) % STAGES) * KV_BYTES, 16, 1024)
#define V_DESCRIPTOR(i) descriptor(v_smem + ((i) % STAGES) * KV_BYTES, BN * 128, 1024)
#define PARITY(i) (((i) / STAGES) & 1)
            if (full == 0) {
                barrier_wait(k_full + 8 * (kv % STAGES), PARITY(kv));
                wgmma_fence();
                scores<64>(s, qd, K_DESCRIPTOR(kv));
                wgmma_commit();
                wgmma_wait<0>();
                fence_registers(s);
                if (lane == 0) barrier_arrive(k_empty + 8 * (kv % STAGES));
                hide<64>(s, place0, place1, column);
                softmax<64>(s, top, l, alpha, c);
                pack<64>(p, s);
            } else {
                barrier_wait(k_full + 8 * (kv % STAGES), PARITY(kv));
                wgmma_fence();
                scores<128>(s, qd, K_DESCRIPTOR(kv));
                wgmma_commit();
                wgmma_wait<0>();
                fence_registers(s);
                if (lane == 0) barrier_arrive(k_empty + 8 * (kv % STAGES));
                if (128 > place + 1) hide<128>(s, place0, place1, column);
                softmax<128>(s, top, l, alpha, c);
                pack<128>(p, s);
                for (int j = 1; j < full; ++j) {
                    const unsigned next = kv + 1;
                    barrier_wait(k_full + 8 * (next % STAGES), PARITY(next));
                    wgmma_fence();
                    scores<128>(s, qd, K_DESCRIPTOR(next));
                    wgmma_commit();
                    barrier_wait(v_full + 8 * (kv % STAGES), PARITY(kv));
                    wgmma_fence();
                    accumulate<128>(o, p, V_DESCRIPTOR(kv));
                    wgmma_commit();
                    wgmma_wait<1>();
                    fence_registers(s);
                    if (lane == 0) barrier_arrive(k_empty + 8 * (next % STAGES));
                    if (128 * (j + 1) > place + 1) hide<128>(s, place0 - 128 * j, place1 - 128 * j, column);
                    softmax<128>(s, top, l, alpha, c);
                    wgmma_wait<0>();
                    fence_registers(o);
                    if (lane == 0) barrier_arrive(v_empty + 8 * (kv % STAGES));
                    rescale(o, alpha);
                    pack<128>(p, s);
                    ++kv;
                }
                if (tail) {
                    const unsigned next = kv + 1;
                    barrier_wait(k_full + 8 * (next % STAGES), PARITY(next));
                    wgmma_fence();
                    scores<64>(s, qd, K_DESCRIPTOR(next));
                    wgmma_commit();
                    barrier_wait(v_full + 8 * (kv % STAGES), PARITY(kv));
                    wgmma_fence();
                    accumulate<128>(o, p, V_DESCRIPTOR(kv));
                    wgmma_commit();
                    wgmma_wait<1>();
                    fence_registers(s);
                    if (lane == 0) barrier_arrive(k_empty + 8 * (next % STAGES));
                    hide<64>(s, place0 - 128 * full, place1 - 128 * full, column);
                    softmax<64>(s, top, l, alpha, c);
                    wgmma_wait<0>();
                    fence_registers(o);
                    if (lane == 0) barrier_arrive(v_empty + 8 * (kv % STAGES));
                    rescale(o, alpha);
                    pack<64>(p, s);
                    ++kv;
                }
            }
            barrier_wait(v_full + 8 * (kv % STAGES), PARITY(kv));
            wgmma_fence();
            if (tail) accumulate<64>(o, p, V_DESCRIPTOR(kv));
            else accumulate<128>(o, p, V_DESCRIPTOR(kv));
            wgmma_commit();
            wgmma_wait<0>();
            fence_registers(o);
            if (lane == 0) {
                barrier_arrive(v_empty + 8 * (kv % STAGES));
                barrier_arrive(q_empty + 8 * qs);
            }
            ++kv;

#pragma unroll
            for (int half = 0; half < 2; ++half) {
                float sum = l[half];
                sum += __shfl_xor_sync(0xffffffffu, sum, 1);
                sum += __shfl_xor_sync(0xffffffffu, sum, 2);
                const float inverse = sum == 0.f ? 1.f : 1.f / sum;
                // a query that is not finite has no finite score, so its maximum is infinite
                if (!(fabsf(top[half]) < INF)) odd = 1;
                const int r = row + 8 * half;
                const int t = token + (r >> shift);
                bf16* to = out + ((long long)t * heads + (kv_head << shift) + (r & ((1 << shift) - 1))) * D;
#pragma unroll
                for (int four = 0; four < 4; ++four) {
                    uint32_t w[4];
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int at = 4 * (4 * four + i) + 2 * half;
                        w[i] = pack2(o[at] * inverse, o[at + 1] * inverse);
                    }
                    // transpose among the four lanes of a row: lane i gets the 8 columns of block i
                    uint32_t x;
                    x = __shfl_xor_sync(0xffffffffu, (lane & 1) ? w[0] : w[1], 1);
                    if (lane & 1) w[0] = x; else w[1] = x;
                    x = __shfl_xor_sync(0xffffffffu, (lane & 1) ? w[2] : w[3], 1);
                    if (lane & 1) w[2] = x; else w[3] = x;
                    x = __shfl_xor_sync(0xffffffffu, (lane & 2) ? w[0] : w[2], 2);
                    if (lane & 2) w[0] = x; else w[2] = x;
                    x = __shfl_xor_sync(0xffffffffu, (lane & 2) ? w[1] : w[3], 2);
                    if (lane & 2) w[1] = x; else w[3] = x;
                    if (t < high) *reinterpret_cast<uint4*>(to + (4 * four + (lane & 3)) * 8) = make_uint4(w[0], w[1], w[2], w[3]);
                }
            }
        }
        const int any = __any_sync(0xffffffffu, odd);
        if (lane == 0) summary[blockIdx.x * WARPS + warp] = any != 0;
    }
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void put(float* p, float x) { *p = x; }
__device__ __forceinline__ void put(__half* p, float x) { *p = __float2half_rn(x); }
__device__ __forceinline__ void put(bf16* p, float x) { *p = __float2bfloat16_rn(x); }
__device__ __forceinline__ bool infinite(float x) { return !(fabsf(x) < INF); }  // or NaN

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
    return x;
}
// the first place of the sequence of place t, by the reference's binary search
__device__ __forceinline__ int sequence_start(const long long* starts, int n, int t) {
    int near = 0, far = n, low = 0;
    while (near < far) {
        const int mid = near + (far - near) / 2;
        const long long start = starts[mid];
        if (start <= t) {
            low = max(low, (int)max(start, 0ll));
            near = mid + 1;
        } else {
            far = mid;
        }
    }
    return low;
}

// Any shape up to a head size of 256, any alignment: a warp for each query and head.
template <typename X>
__global__ void __launch_bounds__(256)
simple_attention(const X* __restrict__ q, const X* __restrict__ k, const X* __restrict__ v, X* __restrict__ out,
                 const long long* __restrict__ starts, int n, unsigned char* __restrict__ flags, int* __restrict__ summary,
                 int tokens, int heads, int kv_heads, int dim, float c) {
    const int lane = threadIdx.x % 32;
    const long long row = blockIdx.x * 8ll + threadIdx.x / 32;
    int odd = 0;
    if (row < (long long)tokens * heads) {
        const int t = (int)(row / heads), head = (int)(row % heads), kv_head = head / (heads / kv_heads);
        const int low = sequence_start(starts, n, t);
        float x[8], o[8], m = -INF, l = 0.f;
        int bad_k = 0, bad_v = 0;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int d = lane + 32 * i;
            x[i] = d < dim ? to_float(q[row * dim + d]) : 0.f;
            o[i] = 0.f;
            if (infinite(x[i])) odd = 1;
        }
        for (int j = low; j <= t; ++j) {
            const long long from = ((long long)j * kv_heads + kv_head) * dim;
            float s = 0.f;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int d = lane + 32 * i;
                if (d < dim) {
                    const float y = to_float(k[from + d]);
                    s = fmaf(x[i], y, s);
                    if (j == t && infinite(y)) bad_k = 1;
                }
            }
            s = warp_sum(s);
            const float above = fmaxf(m, s * c), base = above == -INF ? 0.f : above;
            const float alpha = exp2f(m - base), p = exp2f(fmaf(s, c, -base));
            m = above;
            l = l * alpha + p;
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const int d = lane + 32 * i;
                if (d < dim) {
                    const float y = to_float(v[from + d]);
                    o[i] = fmaf(p, y, o[i] * alpha);
                    if (j == t && infinite(y)) bad_v = 1;
                }
            }
        }
        const float inverse = l == 0.f ? 1.f : 1.f / l;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int d = lane + 32 * i;
            if (d < dim) put(out + row * dim + d, o[i] * inverse);
        }
        bad_k = __any_sync(0xffffffffu, bad_k);
        bad_v = __any_sync(0xffffffffu, bad_v);
        if (lane == 0 && head % (heads / kv_heads) == 0)
            flags[(long long)t * kv_heads + kv_head] = (unsigned char)((bad_k ? 1 : 0) | (bad_v ? 2 : 0));
        odd |= bad_k | bad_v;
    }
    odd = __syncthreads_or(odd);
    if (threadIdx.x == 0) summary[blockIdx.x] = odd != 0;
}

// The reference adds -inf to hidden scores and multiplies hidden values with 0. With infinities and NaN this gives NaN:
// a hidden score of +inf or NaN spoils the whole row, a hidden value that is not finite its column of the row.
template <typename X>
__global__ void __launch_bounds__(256)
repair(const X* __restrict__ q, const X* __restrict__ k, const X* __restrict__ v, X* __restrict__ out,
       const long long* __restrict__ starts, int n, const unsigned char* __restrict__ flags, const int* __restrict__ summary,
       int summaries, int tokens, int heads, int kv_heads, int dim) {
    asm volatile("griddepcontrol.wait;" ::: "memory");
    int any = 0;
    for (int i = threadIdx.x; i < summaries; i += 256) any |= summary[i];
    if (!__syncthreads_or(any)) return;
    const int lane = threadIdx.x % 32;
    const long long rows = (long long)tokens * heads;
    for (long long row = blockIdx.x * 8ll + threadIdx.x / 32; row < rows; row += gridDim.x * 8ll) {
        const int t = (int)(row / heads), head = (int)(row % heads), kv_head = head / (heads / kv_heads);
        const int low = sequence_start(starts, n, t);
        float x[8];
        int odd = 0;
        unsigned own = 0, spoiled = 0;  // one bit for each column of this lane
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const int d = lane + 32 * i;
            x[i] = 0.f;
            if (d < dim) {
                x[i] = to_float(q[row * dim + d]);
                own |= 1u << i;
                if (infinite(x[i])) odd = 1;
            }
        }
        odd = __any_sync(0xffffffffu, odd);
        bool all = false;
        for (int first = 0; first < tokens && !all; first += 32) {
            const int j = first + lane;
            unsigned flag = 0;
            if (j < tokens && (j < low || j > t)) {
                flag = flags[(long long)j * kv_heads + kv_head];
                if (odd) flag |= 1u;
            }
            unsigned those = __ballot_sync(0xffffffffu, flag != 0);
            while (those && !all) {
                const int source = __ffs(those) - 1;
                those &= those - 1;
                const unsigned what = __shfl_sync(0xffffffffu, flag, source);
                const long long from = ((long long)(first + source) * kv_heads + kv_head) * dim;
                if (what & 1u) {
                    float s = 0.f;
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const int d = lane + 32 * i;
                        if (d < dim) s = fmaf(x[i], to_float(k[from + d]), s);
                    }
                    s = warp_sum(s);
                    const bool bad = s != s || s == INF;
                    if (__any_sync(0xffffffffu, bad)) {
                        spoiled = own;
                        all = true;
                    }
                }
                if (what & 2u) {
#pragma unroll
                    for (int i = 0; i < 8; ++i) {
                        const int d = lane + 32 * i;
                        if (d < dim && infinite(to_float(v[from + d]))) spoiled |= 1u << i;
                    }
                    if (__all_sync(0xffffffffu, spoiled == own)) all = true;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 8; ++i)
            if (spoiled >> i & 1u) put(out + row * dim + lane + 32 * i, __int_as_float(0x7fffffff));
    }
}

typedef CUresult (*Encode)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*,
                           const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Encode encoder() {
    static void* found = nullptr;
    if (!found) {
        cudaDriverEntryPointQueryResult result;
        C10_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &found, cudaEnableDefault, &result));
        TORCH_CHECK(found && result == cudaDriverEntryPointSuccess, "no cuTensorMapEncodeTiled");
    }
    return reinterpret_cast<Encode>(found);
}

// of a contiguous tensor (tokens, heads, 128), in boxes of 64 columns
static CUtensorMap make_map(void* data, int tokens, int heads, int box_heads, int box_tokens) {
    CUtensorMap map;
    const cuuint64_t sizes[3] = {(cuuint64_t)D, (cuuint64_t)heads, (cuuint64_t)tokens};
    const cuuint64_t strides[2] = {(cuuint64_t)D * 2, (cuuint64_t)heads * D * 2};
    const cuuint32_t box[3] = {64, (cuuint32_t)box_heads, (cuuint32_t)box_tokens};
    const cuuint32_t steps[3] = {1, 1, 1};
    const CUresult result = encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, data, sizes, strides, box, steps,
                                      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    TORCH_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed");
    return map;
}

template <typename X>
static void launch_repair(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& out, const at::Tensor& starts,
                          const at::Tensor& flags, const at::Tensor& summary, cudaStream_t stream, int blocks) {
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(256);
    config.dynamicSmemBytes = 0;
    config.stream = stream;
    cudaLaunchAttribute attribute[1];
    attribute[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute[0].val.programmaticStreamSerializationAllowed = 1;
    config.attrs = attribute;
    config.numAttrs = 1;
    C10_CUDA_CHECK(cudaLaunchKernelEx(
        &config, repair<X>, (const X*)q.data_ptr(), (const X*)k.data_ptr(), (const X*)v.data_ptr(), (X*)out.data_ptr(),
        (const long long*)starts.data_ptr(), (int)starts.numel(), (const unsigned char*)flags.data_ptr(),
        (const int*)summary.data_ptr(), (int)summary.numel(), (int)q.size(0), (int)q.size(1), (int)k.size(1), (int)q.size(2)));
}

template <typename X>
static void run_simple(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, at::Tensor& out, const at::Tensor& starts,
                       at::Tensor& flags, cudaStream_t stream, int processors, float c) {
    const long long blocks = ((long long)q.size(0) * q.size(1) + 7) / 8;
    auto summary = at::empty({(int64_t)blocks}, starts.options().dtype(at::kInt));
    simple_attention<X><<<(unsigned)blocks, 256, 0, stream>>>(
        (const X*)q.data_ptr(), (const X*)k.data_ptr(), (const X*)v.data_ptr(), (X*)out.data_ptr(),
        (const long long*)starts.data_ptr(), (int)starts.numel(), (unsigned char*)flags.data_ptr(), (int*)summary.data_ptr(),
        (int)q.size(0), (int)q.size(1), (int)k.size(1), (int)q.size(2), c);
    C10_CUDA_KERNEL_LAUNCH_CHECK();
    launch_repair<X>(q, k, v, out, starts, flags, summary, stream, processors);
}

at::Tensor run(at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor starts) {
    q = q.contiguous();
    k = k.contiguous();
    v = v.contiguous();
    starts = starts.to(at::kLong).contiguous();
    auto out = at::empty(q.sizes(), q.options());
    if (out.numel() == 0) return out;
    const int tokens = q.size(0), heads = q.size(1), kv_heads = k.size(1), dim = q.size(2), n = starts.numel();
    const int share = heads / kv_heads;
    const float c = (float)(1.4426950408889634 / std::sqrt((double)dim));
    const int processors = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
    cudaStream_t stream = at::cuda::getCurrentCUDAStream();
    auto flags = at::empty({(int64_t)tokens * kv_heads}, starts.options().dtype(at::kByte));
    int shift = 0;
    while ((1 << shift) < share) ++shift;
    const bool aligned = (uintptr_t)q.data_ptr() % 16 == 0 && (uintptr_t)k.data_ptr() % 16 == 0 && (uintptr_t)v.data_ptr() % 16 == 0;
    if (q.scalar_type() == at::kBFloat16 && dim == D && (1 << shift) == share && share <= 32 && aligned) {
        const int group_tokens = ROWS / share;
        const long long most = ((long long)(tokens + group_tokens - 1) / group_tokens + n + 1) * kv_heads;
        const int grid = (int)std::min((long long)processors, most);
        auto summary = at::empty({(int64_t)grid * WARPS}, starts.options().dtype(at::kInt));
        const CUtensorMap map_q = make_map(q.data_ptr(), tokens, heads, share, group_tokens);
        const CUtensorMap map_k = make_map(k.data_ptr(), tokens, kv_heads, 1, 64);
        const CUtensorMap map_v = make_map(v.data_ptr(), tokens, kv_heads, 1, 64);
        static bool prepared = false;
        if (!prepared) {
            C10_CUDA_CHECK(cudaFuncSetAttribute(packed_attention, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM_BYTES));
            prepared = true;
        }
        packed_attention<<<grid, THREADS, SMEM_BYTES, stream>>>(
            map_q, map_k, map_v, (const bf16*)k.data_ptr(), (const bf16*)v.data_ptr(), (bf16*)out.data_ptr(),
            (const long long*)starts.data_ptr(), n, (unsigned char*)flags.data_ptr(), (int*)summary.data_ptr(),
            tokens, heads, kv_heads, shift, c);
        C10_CUDA_KERNEL_LAUNCH_CHECK();
        launch_repair<bf16>(q, k, v, out, starts, flags, summary, stream, processors);
    } else if (q.scalar_type() == at::kBFloat16) {
        run_simple<bf16>(q, k, v, out, starts, flags, stream, processors, c);
    } else if (q.scalar_type() == at::kHalf) {
        run_simple<__half>(q, k, v, out, starts, flags, stream, processors, c);
    } else {
        run_simple<float>(q, k, v, out, starts, flags, stream, processors, c);
    }
    return out;
}
"""
extension = load_inline(
    name=NAME,
    cpp_sources="at::Tensor run(at::Tensor q, at::Tensor k, at::Tensor v, at::Tensor starts);",
    cuda_sources=cuda_source,
    functions=["run"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


def supports(q, k, v, starts):
    return (
        q.is_cuda
        and q.dim() == k.dim() == v.dim() == 3
        and q.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and k.dtype == q.dtype
        and v.dtype == q.dtype
        and k.shape == v.shape
        and k.shape[0] == q.shape[0]
        and k.shape[2] == q.shape[2]
        and q.shape[2] <= 256
        and q.shape[1] % k.shape[1] == 0
    )


class ModelNew(nn.Module):
    def forward(self, q, k, v, starts):
        return extension.run(q, k, v, starts)
