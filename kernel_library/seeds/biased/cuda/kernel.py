import math

import torch
from torch import nn
from torch.utils.cpp_extension import load_inline

CLUSTER = 1  # blocks (neighbouring batches) that share each bias tile by multicast


def registers(first, count):
    return "{" + ", ".join(f"%{i}" for i in range(first, first + count)) + "}"


def outputs(count):
    return ", ".join(f'"+f"(d[{i}])' for i in range(count))


header = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cstdint>
#include <algorithm>

constexpr float LOG2E = 1.4426950408889634f;
constexpr float HUGE_ROW = 1e30f;
"""

wgmma = (
    "__device__ __forceinline__ void wgmma_qk(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {\n"
    '  asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0; '
    "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " + registers(0, 64) + ', %64, %65, p, 1, 1, 0, 0; }"\n'
    "    : " + outputs(64) + "\n"
    '    : "l"(a), "l"(b), "r"(accumulate));\n}\n'
    "__device__ __forceinline__ void wgmma_pv(float (&d)[32], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b) {\n"
    '  asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0; '
    "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " + registers(0, 32) + ", " + registers(32, 4)
    + ', %36, p, 1, 1, 1; }"\n'
    "    : " + outputs(32) + "\n"
    '    : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(1));\n}\n'
)

device = r"""
// ---------------------------------------------------------------- small helpers
__device__ __forceinline__ float ex2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ uint32_t pack_bf16(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_arrive_at(uint32_t bar, uint32_t rank) {
  asm volatile("{ .reg .b32 remote; mapa.shared::cluster.u32 remote, %0, %1; "
               "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [remote]; }" :: "r"(bar), "r"(rank) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred P1;\n"
      "LAB_WAIT:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 P1, [%0], %1;\n"
      "@P1 bra DONE;\n"
      "bra LAB_WAIT;\n"
      "DONE:\n"
      "}\n" :: "r"(bar), "r"(parity) : "memory");
}
__device__ __forceinline__ void tma_load(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];"
      :: "r"(dst), "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}
__device__ __forceinline__ void tma_multicast(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2, int c3,
                                              uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;"
      :: "r"(dst), "l"(reinterpret_cast<uint64_t>(map)), "r"(bar), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "h"(mask) : "memory");
}
__device__ __forceinline__ void ldmatrix4(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, uint32_t addr) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(addr));
}
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
}
__device__ __forceinline__ void bar_sync(int id) { asm volatile("bar.sync %0, 256;" :: "r"(id) : "memory"); }
__device__ __forceinline__ void bar_arrive(int id) { asm volatile("bar.arrive %0, 256;" :: "r"(id) : "memory"); }
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(N) : "memory");
}
template <int N> __device__ __forceinline__ void keep(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i]) :: "memory");
}
template <int N> __device__ __forceinline__ void keep(uint32_t (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(x[i]) :: "memory");
}
// 128-byte swizzle; both offsets 1024: groups of 8 rows of 128 bytes follow each other
__device__ __forceinline__ uint64_t descriptor(uint32_t addr) {
  return (uint64_t)((addr & 0x3FFFF) >> 4) | (64ull << 16) | (64ull << 32) | (1ull << 62);
}

// ---------------------------------------------------------------- shared memory
constexpr uint32_t TILE = 16384;             // 128 rows of 128 bytes
constexpr uint32_t OFF_Q = 0;                // 2 stages
constexpr uint32_t OFF_K = 2 * TILE;         // 2 stages
constexpr uint32_t OFF_V = 4 * TILE;         // 2 stages
constexpr uint32_t OFF_BIAS = 6 * TILE;      // 3 stages of 2 boxes
constexpr uint32_t OFF_BAR = 12 * TILE;
constexpr uint32_t SMEM = OFF_BAR + 256 + 1024;
constexpr uint32_t Q_FULL = 0, Q_EMPTY = 16, K_FULL = 32, K_EMPTY = 48, V_FULL = 64, V_EMPTY = 80, B_FULL = 96, B_EMPTY = 120;

// ---------------------------------------------------------------- pieces of a step
__device__ __forceinline__ void load_bias(uint32_t (&bias)[32], uint32_t from, const uint32_t (&chunk)[4]) {
#pragma unroll
  for (int t = 0; t < 8; ++t)
    ldmatrix4(bias[4 * t], bias[4 * t + 1], bias[4 * t + 2], bias[4 * t + 3], from + (t >> 2) * TILE + chunk[t & 3]);
}
__device__ __forceinline__ void pack_scores(uint32_t (&p)[32], const float (&s)[64]) {
#pragma unroll
  for (int i = 0; i < 32; ++i) p[i] = pack_bf16(s[2 * i], s[2 * i + 1]);
}
__device__ __forceinline__ void issue_qk(float (&s)[64], uint64_t q_desc, uint32_t k_tile) {
  const uint64_t k_desc = descriptor(k_tile);
#pragma unroll
  for (int t = 0; t < 4; ++t) wgmma_qk(s, q_desc + 2 * t, k_desc + 2 * t, t > 0);
  wgmma_commit();
}
__device__ __forceinline__ void issue_pv(float (&o)[32], const uint32_t (&p)[32], uint32_t v_tile) {
  const uint64_t v_desc = descriptor(v_tile);
#pragma unroll
  for (int t = 0; t < 8; ++t)
    wgmma_pv(o, p[4 * t], p[4 * t + 1], p[4 * t + 2], p[4 * t + 3], v_desc + 128 * t);
  wgmma_commit();
}

// ---------------------------------------------------------------- softmax of 64 x 128 scores, in place
template <bool EDGE>
__device__ __forceinline__ void softmax_step(float (&s)[64], const uint32_t (&bias)[32], float (&m)[2], float (&l)[2],
                                             float (&alpha)[2], float scale, int limit) {
#pragma unroll
  for (int i = 0; i < 32; ++i) {
    s[2 * i] = fmaf(s[2 * i], scale, __uint_as_float(bias[i] << 16));
    s[2 * i + 1] = fmaf(s[2 * i + 1], scale, __uint_as_float(bias[i] & 0xffff0000u));
  }
  if (EDGE) {
#pragma unroll
    for (int i = 0; i < 64; ++i)
      if (8 * (i / 4) + (i & 1) >= limit) s[i] = -INFINITY;
  }
  float top[2][2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    top[r][0] = fmaxf(m[r], s[2 * r]);
    top[r][1] = s[2 * r + 1];
  }
#pragma unroll
  for (int g = 1; g < 16; ++g) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      top[r][0] = fmaxf(top[r][0], s[4 * g + 2 * r]);
      top[r][1] = fmaxf(top[r][1], s[4 * g + 2 * r + 1]);
    }
  }
  float c[2], shift[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float x = fmaxf(top[r][0], top[r][1]);
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
    const float safe = x == -INFINITY ? 0.f : x;
    // in a huge row x - m is 0 or so large that p is 1 or 0 in any base, and m * c cannot overflow
    c[r] = fabsf(safe) > HUGE_ROW ? 1.f : LOG2E;
    shift[r] = -safe * c[r];
    alpha[r] = ex2(fmaf(m[r], c[r], shift[r]));
    m[r] = x;
  }
  float sum[2][2] = {{0.f, 0.f}, {0.f, 0.f}};
#pragma unroll
  for (int g = 0; g < 16; ++g) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float p = ex2(fmaf(s[4 * g + 2 * r + i], c[r], shift[r]));
        s[4 * g + 2 * r + i] = p;
        sum[r][i] += p;
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) l[r] = fmaf(l[r], alpha[r], sum[r][0] + sum[r][1]);
}
"""

kernel = r"""
// ---------------------------------------------------------------- TMA producer + 2 consumer warpgroups, persistent
template <bool EDGE, int CL>
__global__ void __launch_bounds__(384, 1) attention_kernel(
    const __grid_constant__ CUtensorMap q_map, const __grid_constant__ CUtensorMap k_map,
    const __grid_constant__ CUtensorMap v_map, const __grid_constant__ CUtensorMap bias_map,
    __nv_bfloat16* __restrict__ out, int B, int H, int M, int N, int blocks_m, int steps, int units,
    int bias_b, int bias_h, float scale) {
  extern __shared__ uint8_t raw[];
  const uint32_t base = ((uint32_t)__cvta_generic_to_shared(raw) + 1023u) & ~1023u;
  const uint32_t bars = base + OFF_BAR;
  uint32_t rank = 0;
  if constexpr (CL > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbar_init(bars + Q_FULL + 8 * i, 1);
      mbar_init(bars + Q_EMPTY + 8 * i, 8);
      mbar_init(bars + K_FULL + 8 * i, 1);
      mbar_init(bars + K_EMPTY + 8 * i, 8);
      mbar_init(bars + V_FULL + 8 * i, 1);
      mbar_init(bars + V_EMPTY + 8 * i, 8);
    }
    for (int i = 0; i < 3; ++i) {
      mbar_init(bars + B_FULL + 8 * i, 1);
      mbar_init(bars + B_EMPTY + 8 * i, 8 * CL);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("fence.proxy.async;" ::: "memory");
  }
  __syncthreads();
  if constexpr (CL > 1) cluster_sync();

  const int first = blockIdx.x / CL, stride = gridDim.x / CL;
  const int group = threadIdx.x / 128;

  if (group == 2) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    if (threadIdx.x == 256) {
      uint32_t g = 0, tiles = 0, bs = 0, bp = 0;
      for (int u = first; u < units; u += stride) {
        const int tile = u * CL + (int)rank;
        const int b = tile % B, rest = tile / B, row = (rest % blocks_m) * 128, h = rest / blocks_m;
        const int bb = bias_b ? b : 0, bh = bias_h ? h : 0;
        {
          const uint32_t st = tiles & 1, full = bars + Q_FULL + 8 * st;
          mbar_wait(bars + Q_EMPTY + 8 * st, ((tiles >> 1) & 1) ^ 1);
          mbar_expect(full, TILE);
          tma_load(base + OFF_Q + st * TILE, &q_map, full, 0, row, h, b);
          ++tiles;
        }
        for (int j = 0; j <= steps; ++j) {
          if (j < steps) {
            const uint32_t st = g & 1, full = bars + K_FULL + 8 * st;
            mbar_wait(bars + K_EMPTY + 8 * st, ((g >> 1) & 1) ^ 1);
            mbar_expect(full, TILE);
            tma_load(base + OFF_K + st * TILE, &k_map, full, 0, j * 128, h, b);
          }
          if (j > 0) {
            const uint32_t gv = g - 1, st = gv & 1, full = bars + V_FULL + 8 * st;
            mbar_wait(bars + V_EMPTY + 8 * st, ((gv >> 1) & 1) ^ 1);
            mbar_expect(full, TILE);
            tma_load(base + OFF_V + st * TILE, &v_map, full, 0, (j - 1) * 128, h, b);
          }
          if (j < steps) {
            const uint32_t full = bars + B_FULL + 8 * bs, dst = base + OFF_BIAS + bs * 2 * TILE;
            mbar_wait(bars + B_EMPTY + 8 * bs, bp ^ 1);
            mbar_expect(full, 2 * TILE);
            if constexpr (CL == 1) {
              tma_load(dst, &bias_map, full, j * 128, row, bh, bb);
              tma_load(dst + TILE, &bias_map, full, j * 128 + 64, row, bh, bb);
            } else {
              // this block fetches 64 of the 128 rows for both blocks
              const uint32_t half = rank * (TILE / 2);
              tma_multicast(dst + half, &bias_map, full, j * 128, row + 64 * (int)rank, bh, bb, (uint16_t)3);
              tma_multicast(dst + TILE + half, &bias_map, full, j * 128 + 64, row + 64 * (int)rank, bh, bb, (uint16_t)3);
            }
            if (++bs == 3) { bs = 0; bp ^= 1; }
            ++g;
          }
        }
      }
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) & 3;
    uint32_t g = 0, tiles = 0, bs = 0, bp = 0;
    // rows of the bias for ldmatrix, and the swizzled chunks of a row
    const uint32_t bias_row = base + OFF_BIAS + (group * 64 + warp * 16 + (lane & 15)) * 128;
    uint32_t chunk[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) chunk[i] = (uint32_t)((2 * i + (lane >> 4)) ^ (lane & 7)) << 4;

    float s[64], o[32], m[2], l[2], alpha[2];
    uint32_t p[32], bias[32];
#pragma unroll
    for (int i = 0; i < 64; ++i) s[i] = 0.f;
#pragma unroll
    for (int i = 0; i < 32; ++i) p[i] = 0;

    auto release_bias = [&]() {
      const uint32_t bar = bars + B_EMPTY + 8 * bs;
      __syncwarp();
      if constexpr (CL == 1) {
        if (lane == 0) mbar_arrive(bar);
      } else {
        if (lane < CL) mbar_arrive_at(bar, lane);
      }
      if (++bs == 3) { bs = 0; bp ^= 1; }
    };
    auto release = [&](uint32_t bar) {
      __syncwarp();
      if (lane == 0) mbar_arrive(bar);
    };
    if (group == 1) bar_arrive(1);  // warpgroup 0 goes first

    for (int u = first; u < units; u += stride) {
      const int tile = u * CL + (int)rank;
      const int b = tile % B, rest = tile / B, row = (rest % blocks_m) * 128, h = rest / blocks_m;
      const uint32_t qs = tiles & 1;
      const uint64_t q_desc = descriptor(base + OFF_Q + qs * TILE + group * (TILE / 2));
      int limit = N - 2 * (lane & 3);
#pragma unroll
      for (int i = 0; i < 32; ++i) o[i] = 0.f;
#pragma unroll
      for (int r = 0; r < 2; ++r) { m[r] = -INFINITY; l[r] = 0.f; }

      mbar_wait(bars + Q_FULL + 8 * qs, (tiles >> 1) & 1);
      mbar_wait(bars + K_FULL + 8 * (g & 1), (g >> 1) & 1);
      mbar_wait(bars + B_FULL + 8 * bs, bp);
      keep(s);
      wgmma_fence();
      issue_qk(s, q_desc, base + OFF_K + (g & 1) * TILE);
      load_bias(bias, bias_row + bs * 2 * TILE, chunk);
      wgmma_wait<0>();
      keep(s);
      release(bars + K_EMPTY + 8 * (g & 1));
      softmax_step<EDGE>(s, bias, m, l, alpha, scale, limit);
      release_bias();
      pack_scores(p, s);
      ++g;

      for (int j = 1; j < steps; ++j, ++g) {
        limit -= 128;
        const uint32_t before = g - 1;
        mbar_wait(bars + K_FULL + 8 * (g & 1), (g >> 1) & 1);
        mbar_wait(bars + V_FULL + 8 * (before & 1), (before >> 1) & 1);
        mbar_wait(bars + B_FULL + 8 * bs, bp);
        bar_sync(1 + group);
        keep(s);
        keep(o);
        keep(p);
        wgmma_fence();
        issue_qk(s, q_desc, base + OFF_K + (g & 1) * TILE);
        issue_pv(o, p, base + OFF_V + (before & 1) * TILE);
        bar_arrive(2 - group);
        load_bias(bias, bias_row + bs * 2 * TILE, chunk);
        wgmma_wait<1>();
        keep(s);
        release(bars + K_EMPTY + 8 * (g & 1));
        softmax_step<EDGE>(s, bias, m, l, alpha, scale, limit);
        release_bias();
        wgmma_wait<0>();
        keep(o);
        keep(p);
        release(bars + V_EMPTY + 8 * (before & 1));
#pragma unroll
        for (int i = 0; i < 32; ++i) o[i] *= alpha[(i >> 1) & 1];
        pack_scores(p, s);
      }

      release(bars + Q_EMPTY + 8 * qs);
      ++tiles;
      const uint32_t last = g - 1;
      mbar_wait(bars + V_FULL + 8 * (last & 1), (last >> 1) & 1);
      keep(o);
      keep(p);
      wgmma_fence();
      issue_pv(o, p, base + OFF_V + (last & 1) * TILE);
      wgmma_wait<0>();
      keep(o);
      keep(p);
      release(bars + V_EMPTY + 8 * (last & 1));

#pragma unroll
      for (int r = 0; r < 2; ++r) {
        float sum = l[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        const float inverse = sum == 0.f ? 1.f : 1.f / sum;  // an empty row gives 0
        const int at = row + group * 64 + warp * 16 + (lane >> 2) + 8 * r;
        if (at < M) {
          uint32_t* to = reinterpret_cast<uint32_t*>(out + (((int64_t)b * H + h) * M + at) * 64) + (lane & 3);
#pragma unroll
          for (int i = 0; i < 8; ++i) to[4 * i] = pack_bf16(o[4 * i + 2 * r] * inverse, o[4 * i + 2 * r + 1] * inverse);
        }
      }
    }
  }
  if constexpr (CL > 1) cluster_sync();  // the other block may still write here
}

// ---------------------------------------------------------------- everything else: one warp for each query
__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ void put(float* p, float x) { *p = x; }
__device__ __forceinline__ void put(__half* p, float x) { *p = __float2half_rn(x); }
__device__ __forceinline__ void put(__nv_bfloat16* p, float x) { *p = __float2bfloat16_rn(x); }

struct Strides { int64_t b, h, n; };

template <typename T>
__global__ void __launch_bounds__(128) plain_kernel(
    const T* __restrict__ q, const T* __restrict__ k, const T* __restrict__ v, const T* __restrict__ bias, T* __restrict__ out,
    Strides qs, Strides ks, Strides vs, Strides bs, int64_t rows, int H, int M, int N, int D, float scale) {
  __shared__ float query[4][256];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t index = (int64_t)blockIdx.x * 4 + warp;
  if (index >= rows) return;
  const int64_t row = index % M, h = (index / M) % H, b = index / M / H;
  const T* qp = q + b * qs.b + h * qs.h + row * qs.n;
  const T* kp = k + b * ks.b + h * ks.h;
  const T* vp = v + b * vs.b + h * vs.h;
  const T* bp = bias + b * bs.b + h * bs.h + row * bs.n;
  for (int d = lane; d < D; d += 32) query[warp][d] = to_float(qp[d]);
  __syncwarp();
  float acc[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  float m = -INFINITY, l = 0.f;
  for (int n0 = 0; n0 < N; n0 += 32) {
    const int n = n0 + lane;
    float x = -INFINITY;
    if (n < N) {
      const T* kr = kp + n * ks.n;
      float sum = 0.f;
      for (int d = 0; d < D; ++d) sum = fmaf(query[warp][d], to_float(kr[d]), sum);
      x = fmaf(sum, scale, to_float(bp[n]));
    }
    float top = fmaxf(m, x);
    for (int i = 16; i > 0; i /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, i));
    const float safe = top == -INFINITY ? 0.f : top;
    const float c = fabsf(safe) > HUGE_ROW ? 1.f : LOG2E;
    const float shift = -safe * c;
    const float alpha = exp2f(fmaf(m, c, shift));
    const float p = exp2f(fmaf(x, c, shift));
    m = top;
    l = fmaf(l, alpha, p);
    for (int i = 0; i < 8; ++i) acc[i] *= alpha;
    const int count = min(32, N - n0);
    for (int j = 0; j < count; ++j) {
      const float w = __shfl_sync(0xffffffffu, p, j);
      const T* vr = vp + (n0 + j) * vs.n;
#pragma unroll
      for (int i = 0; i < 8; ++i)
        if (lane + 32 * i < D) acc[i] = fmaf(w, to_float(vr[lane + 32 * i]), acc[i]);
    }
  }
  for (int i = 16; i > 0; i /= 2) l += __shfl_xor_sync(0xffffffffu, l, i);
  const float total = l == 0.f ? 1.f : l;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (lane + 32 * i < D) put(out + index * D + lane + 32 * i, acc[i] / total);
}
"""

host = r"""
// ---------------------------------------------------------------- host
static CUtensorMap make_map(const torch::Tensor& x, int box_rows) {
  static const auto encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
    C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found));
#else
    C10_CUDA_CHECK(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &f, cudaEnableDefault, &found));
#endif
    TORCH_CHECK(f != nullptr, "no cuTensorMapEncodeTiled");
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(f);
  }();
  cuuint64_t dims[4], strides[3];
  dims[0] = (cuuint64_t)x.size(3);
  const cuuint64_t any = (dims[0] * 2 + 15) / 16 * 16;
  for (int i = 1; i < 4; ++i) {
    const bool single = x.size(3 - i) == 1 || x.stride(3 - i) == 0;
    dims[i] = single ? 1 : (cuuint64_t)x.size(3 - i);
    strides[i - 1] = single ? any : (cuuint64_t)x.stride(3 - i) * 2;
  }
  const cuuint32_t box[4] = {64, (cuuint32_t)box_rows, 1, 1}, ones[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4, x.data_ptr(), dims, strides, box, ones,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TORCH_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed: ", (int)result);
  return map;
}

static bool tma_ready(const torch::Tensor& x, bool broadcast) {
  if (reinterpret_cast<uintptr_t>(x.data_ptr()) % 16 || x.stride(3) != 1) return false;
  for (int i = 0; i < 3; ++i) {
    if (x.size(i) == 1) continue;
    if (x.stride(i) % 8 || x.stride(i) < 0 || (x.stride(i) == 0 && !(broadcast && i < 2))) return false;
  }
  return true;
}

template <bool EDGE, int CL>
static void launch(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& bias,
                   torch::Tensor& out, int blocks_m, float scale) {
  const int B = (int)q.size(0), H = (int)q.size(1), M = (int)q.size(2), N = (int)k.size(2);
  const CUtensorMap qm = make_map(q, 128), km = make_map(k, 128), vm = make_map(v, 128), bm = make_map(bias, 128 / CL);
  const int steps = (N + 127) / 128, units = B * H * blocks_m / CL;
  const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  const int grid = std::min(units, sms / CL) * CL;
  const int bias_b = B > 1 && bias.stride(0) != 0, bias_h = H > 1 && bias.stride(1) != 0;
  auto* kernel = attention_kernel<EDGE, CL>;
  C10_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)SMEM));
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = SMEM;
  config.stream = at::cuda::getCurrentCUDAStream();
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = CL;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  config.attrs = attribute;
  config.numAttrs = CL > 1 ? 1 : 0;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, qm, km, vm, bm, reinterpret_cast<__nv_bfloat16*>(out.data_ptr()),
                                    B, H, M, N, blocks_m, steps, units, bias_b, bias_h, scale));
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

template <typename T>
static void plain(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v, const torch::Tensor& bias,
                  torch::Tensor& out, float scale) {
  const int64_t rows = q.size(0) * q.size(1) * q.size(2);
  auto strides = [](const torch::Tensor& x) { return Strides{x.stride(0), x.stride(1), x.stride(2)}; };
  auto data = [](const torch::Tensor& x) { return reinterpret_cast<const T*>(x.data_ptr()); };
  plain_kernel<T><<<(unsigned)((rows + 3) / 4), 128, 0, at::cuda::getCurrentCUDAStream()>>>(
      data(q), data(k), data(v), data(bias), reinterpret_cast<T*>(out.data_ptr()), strides(q), strides(k), strides(v),
      strides(bias), rows, (int)q.size(1), (int)q.size(2), (int)k.size(2), (int)q.size(3), scale);
  C10_CUDA_KERNEL_LAUNCH_CHECK();
}

torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor bias, double scale) {
  const int64_t B = q.size(0), H = q.size(1), M = q.size(2), D = q.size(3), N = k.size(2);
  torch::Tensor out = torch::empty({B, H, M, D}, q.options());
  if (out.numel() == 0) return out;
  const int64_t blocks_m = (M + 127) / 128;
  if (q.scalar_type() == at::kBFloat16 && D == 64 && N > 0 && N < (1 << 30) && B * H * blocks_m < (1 << 30) &&
      tma_ready(q, false) && tma_ready(k, false) && tma_ready(v, false) && tma_ready(bias, true)) {
    const bool edge = N % 128 != 0;
    if constexpr (CLUSTER > 1) {
      if (B % 2 == 0 && bias.stride(0) == 0) {
        if (edge) launch<true, CLUSTER>(q, k, v, bias, out, (int)blocks_m, (float)scale);
        else launch<false, CLUSTER>(q, k, v, bias, out, (int)blocks_m, (float)scale);
        return out;
      }
    }
    if (edge) launch<true, 1>(q, k, v, bias, out, (int)blocks_m, (float)scale);
    else launch<false, 1>(q, k, v, bias, out, (int)blocks_m, (float)scale);
    return out;
  }
  if (q.scalar_type() == at::kBFloat16) plain<__nv_bfloat16>(q, k, v, bias, out, (float)scale);
  else if (q.scalar_type() == at::kHalf) plain<__half>(q, k, v, bias, out, (float)scale);
  else plain<float>(q, k, v, bias, out, (float)scale);
  return out;
}
"""

extension = load_inline(
    name=f"biased_attention_cluster{CLUSTER}",
    cpp_sources="torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v, torch::Tensor bias, double scale);",
    cuda_sources=header + f"constexpr int CLUSTER = {CLUSTER};\n" + wgmma + device + kernel + host,
    functions=["attention"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a"],
)


def supports(q, k, v, bias):
    return (
        q.dim() == 4 and k.dim() == 4 and v.dim() == 4 and q.is_cuda and bias.is_floating_point()
        and q.dtype in (torch.bfloat16, torch.float16, torch.float32)
        and q.dtype == k.dtype == v.dtype == bias.dtype
        and q.shape[:2] == k.shape[:2] == v.shape[:2]
        and q.shape[3] == k.shape[3] == v.shape[3] and q.shape[3] <= 256
        and k.shape[2] == v.shape[2]
    )


def rows(x):
    return x if x.stride(-1) == 1 else x.contiguous()


class ModelNew(nn.Module):
    def forward(self, q, k, v, bias):
        B, H, M, D = q.shape
        bias = rows(bias.expand(B, H, M, k.shape[2]))
        return extension.attention(rows(q), rows(k), rows(v), bias, 1.0 / math.sqrt(D))
