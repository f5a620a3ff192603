import torch
import triton
import triton.language as tl
from torch import nn
from torch.utils.cpp_extension import load_inline
from triton.tools.tensor_descriptor import TensorDescriptor

CLUSTER = 1  # blocks that share a token tile
REDUCE = 1   # 0: y and a combine kernel, 1: bulk reductions to out, 2: red.global to out
GATHER = 1   # 1: the gate_up kernel gathers the rows of x itself

BIG = {"BM": 128, "BN1": 128, "BN2": 256, "BK": 64, "warps": 8, "stages": 4}
SMALL = {"BM": 16, "BN1": 32, "BN2": 64, "BK": 64, "warps": 4, "stages": 6}
GATHERED = True


@triton.jit
def route_kernel(chosen, counter, starts, ends, tstarts, tends, texp, order, n, E, max_tiles,
                 BM: tl.constexpr, NB: tl.constexpr, CH: tl.constexpr, TB: tl.constexpr):
    bins = tl.arange(0, NB)
    counts = tl.zeros([NB], tl.int32)
    for s in range(0, n, CH):
        i = s + tl.arange(0, CH)
        e = tl.load(chosen + i, mask=i < n, other=-1).to(tl.int32)
        e = tl.where((e >= 0) & (e < E), e, E)
        counts += tl.histogram(e, NB)
    counts = tl.where(bins < E, counts, 0)
    last = tl.cumsum(counts, 0)
    first = last - counts
    tiles = (counts + BM - 1) // BM
    tlast = tl.cumsum(tiles, 0)
    tl.store(counter + bins, first)
    tl.store(starts + bins, first)
    tl.store(ends + bins, last)
    tl.store(tstarts + bins, tlast - tiles)
    tl.store(tends + bins, tlast)
    for s in range(0, max_tiles, TB):
        t = s + tl.arange(0, TB)
        te = tl.sum((tlast[None, :] <= t[:, None]).to(tl.int32), 1)
        tl.store(texp + t, te, mask=t < max_tiles)
    tl.debug_barrier()
    for s in range(0, n, CH):
        i = s + tl.arange(0, CH)
        e = tl.load(chosen + i, mask=i < n, other=-1).to(tl.int32)
        valid = (e >= 0) & (e < E)
        e = tl.where(valid, e, 0)
        place = tl.atomic_add(counter + e, tl.full([CH], 1, tl.int32), mask=valid)
        tl.store(order + place, i, mask=valid)


@triton.jit
def combine_kernel(y, chosen, out, E, F: tl.constexpr, ACTIVE: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for j in range(ACTIVE):
        e = tl.load(chosen + t * ACTIVE + j)
        ok = (e >= 0) & (e < E)
        acc += tl.load(y + (t * ACTIVE + j) * F + c, mask=(c < F) & ok, other=0.0).to(tl.float32)
    tl.store(out + t * F + c, acc.to(out.dtype.element_ty), mask=c < F)


@triton.jit
def combine_pad_kernel(y, chosen, out, E, F: tl.constexpr, FP: tl.constexpr, ACTIVE: tl.constexpr,
                       BLOCK: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros([BLOCK], tl.float32)
    for j in range(ACTIVE):
        e = tl.load(chosen + t * ACTIVE + j)
        ok = (e >= 0) & (e < E)
        acc += tl.load(y + (t * ACTIVE + j) * FP + c, mask=(c < F) & ok, other=0.0).to(tl.float32)
    tl.store(out + t * F + c, acc.to(out.dtype.element_ty), mask=c < F)


@triton.jit
def gather_kernel(x, xs, order, ends, E, F: tl.constexpr, FP: tl.constexpr, ACTIVE: tl.constexpr,
                  BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    if row < tl.load(ends + E - 1):
        tok = (tl.load(order + row) // ACTIVE).to(tl.int64)
        v = tl.load(x + tok * F + c, mask=c < F, other=0.0)
        tl.store(xs + row.to(tl.int64) * FP + c, v, mask=c < FP)


@triton.jit
def gate_up_kernel(a_desc, x, w_desc, h, order, starts, ends, tstarts, texp, E, P, H: tl.constexpr, HP: tl.constexpr,
                   F: tl.constexpr, ACTIVE: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                   GATHERED: tl.constexpr):
    pid = tl.program_id(0)
    g = pid // P
    p = pid % P
    e = tl.load(texp + g)
    if e < E:
        first = tl.load(starts + e) + (g - tl.load(tstarts + e)) * BM
        end = tl.load(ends + e)
        rows = first + tl.arange(0, BM)
        n = p * BN + tl.arange(0, BN)
        wrow = e * (2 * HP) + p * BN
        acc_g = tl.zeros([BM, BN], tl.float32)
        acc_u = tl.zeros([BM, BN], tl.float32)
        if GATHERED:
            for k0 in range(0, F, BK):
                a = a_desc.load([first, k0])
                wg = w_desc.load([wrow, k0])
                wu = w_desc.load([wrow + HP, k0])
                acc_g = tl.dot(a, wg.T, acc_g)
                acc_u = tl.dot(a, wu.T, acc_u)
        else:
            slot = tl.load(order + rows, mask=rows < end, other=0)
            k = tl.arange(0, BK)
            a_ptrs = x + (slot // ACTIVE).to(tl.int64)[:, None] * F + k[None, :]
            for k0 in range(0, F, BK):
                if F % BK == 0:
                    a = tl.load(a_ptrs)
                else:
                    a = tl.load(a_ptrs, mask=k[None, :] < F - k0, other=0.0)
                wg = w_desc.load([wrow, k0])
                wu = w_desc.load([wrow + HP, k0])
                acc_g = tl.dot(a, wg.T, acc_g)
                acc_u = tl.dot(a, wu.T, acc_u)
                a_ptrs += BK
        v = acc_g / (1.0 + tl.exp(-acc_g)) * acc_u
        v = tl.where((n < H)[None, :], v, 0.0)
        tl.store(h + rows.to(tl.int64)[:, None] * HP + n[None, :], v.to(h.dtype.element_ty),
                 mask=(rows < end)[:, None] & (n < HP)[None, :])


@triton.jit
def down_kernel(h_desc, w_desc, weights, y, order, starts, ends, tstarts, texp, E, P, H: tl.constexpr,
                FP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    g = pid // P
    p = pid % P
    e = tl.load(texp + g)
    if e < E:
        first = tl.load(starts + e) + (g - tl.load(tstarts + e)) * BM
        end = tl.load(ends + e)
        rows = first + tl.arange(0, BM)
        n = p * BN + tl.arange(0, BN)
        wrow = e * FP + p * BN
        acc = tl.zeros([BM, BN], tl.float32)
        for k0 in range(0, H, BK):
            a = h_desc.load([first, k0])
            b = w_desc.load([wrow, k0])
            acc = tl.dot(a, b.T, acc)
        slot = tl.load(order + rows, mask=rows < end, other=0)
        w = tl.load(weights + slot).to(tl.float32)
        v = acc * w[:, None]
        tl.store(y + slot.to(tl.int64)[:, None] * FP + n[None, :], v.to(y.dtype.element_ty),
                 mask=(rows < end)[:, None] & (n < FP)[None, :])


WIDTHS = (64, 128, 136, 144, 192, 224, 232, 240, 248, 256)


def mma_source(n):
    regs = n // 2
    d = ", ".join(f"%{i}" for i in range(regs))
    outs = ", ".join(f'"+f"(d[{i}])' for i in range(regs))
    return (
        f"template <> struct Mma<{n}> {{\n"
        f"  static __device__ __forceinline__ void run(float (&d)[{regs}], uint64_t a, uint64_t b) {{\n"
        f'    asm volatile("{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{regs + 2}, 0;\\n"\n'
        f'      "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16 {{{d}}}, %{regs}, %{regs + 1}, p, 1, 1, 0, 0;\\n}}\\n"\n'
        f'      : {outs} : "l"(a), "l"(b), "r"(1));\n'
        f"  }}\n}};\n"
    )


cuda_head = r"""
#include <torch/types.h>
#include <ATen/cuda/CUDAContext.h>
#include <c10/cuda/CUDAException.h>
#include <cuda.h>
#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <algorithm>
#include <cstdint>

#define CLUSTER MOE_CLUSTER
#define REDUCE MOE_REDUCE
#define GATHER MOE_GATHER

constexpr int CAP = 272;            // tokens of a tile
constexpr int STAGES = 4;
constexpr int W_BYTES = 128 * 128;  // 128 weight rows of 64 values
constexpr int STAGE_BYTES = W_BYTES + CAP * 128;
constexpr int STG_BYTES = 12288;    // staging of the epilogue, per warpgroup
constexpr int OFF_STG = STAGES * STAGE_BYTES;
constexpr int OFF_BAR = OFF_STG + 2 * STG_BYTES;
constexpr int OFF_TAB = OFF_BAR + 128;
constexpr int MAX_CHUNKS = 128;
constexpr int SMEM = 1024 + OFF_TAB + MAX_CHUNKS * 8;
constexpr int SPLIT = 4;            // routing blocks per expert
constexpr int PAD = 320;
constexpr int TOKEN_MAPS = CAP / 16;
constexpr uint64_t EVICT_FIRST = 0x12F0000000000000ull;
constexpr uint64_t EVICT_NORMAL = 0x1000000000000000ull;

struct Maps {
  CUtensorMap w;
  CUtensorMap t[TOKEN_MAPS];  // t[i] loads 8 * (i + 1) rows
};

template <int N> struct Mma;
"""

cuda_body = r"""
__device__ __forceinline__ uint32_t smem_u32(const void* p) {
  return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void gdc_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void gdc_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void mbar_init(uint32_t bar, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbar_expect(uint32_t bar, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbar_wait(uint32_t bar, uint32_t parity) {
  uint32_t done = 0;
  while (!done) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done) : "r"(bar), "r"(parity) : "memory");
  }
}
__device__ __forceinline__ void mbar_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
__device__ __forceinline__ void mbar_arrive_remote(uint32_t bar, uint32_t cta) {
  asm volatile(
      "{\n.reg .b32 ra;\n"
      "mapa.shared::cluster.u32 ra, %0, %1;\n"
      "mbarrier.arrive.release.cluster.shared::cluster.b64 _, [ra];\n}\n" ::"r"(bar), "r"(cta) : "memory");
}
__device__ __forceinline__ void cluster_sync_all() {
  asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;\n" ::: "memory");
}
__device__ __forceinline__ void tma_2d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4}], [%2], %5;" ::"r"(dst), "l"((uint64_t)map), "r"(bar), "r"(c0), "r"(c1), "l"(EVICT_NORMAL)
      : "memory");
}
__device__ __forceinline__ void tma_2d_multicast(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1,
                                                 uint16_t mask) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint "
      "[%0], [%1, {%4, %5}], [%2], %3, %6;" ::"r"(dst), "l"((uint64_t)map), "r"(bar), "h"(mask), "r"(c0), "r"(c1),
      "l"(EVICT_NORMAL)
      : "memory");
}
__device__ __forceinline__ void tma_3d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(dst), "l"((uint64_t)map), "r"(bar), "r"(c0), "r"(c1), "r"(c2),
      "l"(EVICT_FIRST)
      : "memory");
}
__device__ __forceinline__ void tma_5d(uint32_t dst, const CUtensorMap* map, uint32_t bar, int c0, int c1, int c2,
                                       int c3, int c4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;" ::"r"(dst), "l"((uint64_t)map), "r"(bar), "r"(c0), "r"(c1),
      "r"(c2), "r"(c3), "r"(c4), "l"(EVICT_FIRST)
      : "memory");
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
template <int R> __device__ __forceinline__ void fence_regs(float (&d)[R]) {
#pragma unroll
  for (int i = 0; i < R; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
__device__ __forceinline__ void fence_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void fence_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
__device__ __forceinline__ void bar_sync(int id) { asm volatile("bar.sync %0, 128;" ::"r"(id) : "memory"); }
__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
  return r;
}
__device__ __forceinline__ void stmatrix_t(uint32_t addr, const uint32_t (&v)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(addr), "r"(v[0]),
               "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}
__device__ __forceinline__ uint4 lds128(uint32_t addr) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(addr) : "memory");
  return v;
}
__device__ __forceinline__ float swiglu(float g, float u) {
  float r;
  asm("rcp.approx.f32 %0, %1;" : "=f"(r) : "f"(1.0f + __expf(-g)));
  return g * r * u;
}

// ---------------------------------------------------------------------------------------------------------------
// Routing: SPLIT blocks per expert; each counts and places the assignments of its expert.

__global__ void __launch_bounds__(1024)
route_kernel(const long long* chosen, const uint4* x, uint4* xs, const __nv_bfloat16* weights, int* starts,
             int* counts, int* tok, float* wsort, int* pos, uint4* zero, long long zeros, int n, int E, int active,
             int F8) {
  extern __shared__ int list[];
  __shared__ int warp_mine[32];
  __shared__ int warp_less[32];
  gdc_wait();
  gdc_launch();
  const int tid = threadIdx.x, warp = tid >> 5, lane = tid & 31;
  const int e = blockIdx.x / SPLIT, s = blockIdx.x % SPLIT;
#if REDUCE
  const uint4 nothing = make_uint4(0u, 0u, 0u, 0u);
  for (long long i = blockIdx.x * 1024LL + tid; i < zeros; i += gridDim.x * 1024LL) zero[i] = nothing;
#endif
#if GATHER
  if (s != 0) return;
#endif
  int less = 0, mine = 0;
#pragma unroll 8
  for (int i = tid; i < n; i += 1024) {
    const long long v = chosen[i];
    less += (v >= 0 && v < e) ? 1 : 0;
    mine += (v == e) ? 1 : 0;
  }
  int inc = mine;
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const int t = __shfl_up_sync(0xffffffffu, inc, o);
    if (lane >= o) inc += t;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) less += __shfl_xor_sync(0xffffffffu, less, o);
  if (lane == 31) warp_mine[warp] = inc;
  if (lane == 0) warp_less[warp] = less;
  __syncthreads();
  const int theirs = warp_mine[lane];
  int upto = theirs;
  int start = warp_less[lane];
#pragma unroll
  for (int o = 1; o < 32; o <<= 1) {
    const int t = __shfl_up_sync(0xffffffffu, upto, o);
    if (lane >= o) upto += t;
  }
#pragma unroll
  for (int o = 16; o > 0; o >>= 1) start += __shfl_xor_sync(0xffffffffu, start, o);
  const int count = __shfl_sync(0xffffffffu, upto, 31);
  int p = __shfl_sync(0xffffffffu, upto - theirs, warp) + inc - mine;
#pragma unroll 8
  for (int i = tid; i < n; i += 1024) {
    const long long v = chosen[i];
    if (v == e) {
      list[p] = i;
      if (s == 0) {
        tok[start + p] = i / active;
        wsort[start + p] = __bfloat162float(weights[i]);
        pos[i] = start + p;
      }
      ++p;
    } else if (blockIdx.x == 0 && (v < 0 || v >= E)) {
      pos[i] = -1;
    }
  }
  if (s == 0 && tid == 0) {
    starts[e] = start;
    counts[e] = count;
  }
#if !GATHER
  __syncthreads();
  for (int r = warp * SPLIT + s; r < count; r += 32 * SPLIT) {
    const uint4* from = x + (long long)(list[r] / active) * F8;
    uint4* to = xs + (long long)(start + r) * F8;
    for (int c0 = 0; c0 < F8; c0 += 256) {
      uint4 v[8];
#pragma unroll
      for (int u = 0; u < 8; ++u) {
        const int c = c0 + u * 32 + lane;
        if (c < F8) v[u] = from[c];
      }
#pragma unroll
      for (int u = 0; u < 8; ++u) {
        const int c = c0 + u * 32 + lane;
        if (c < F8) to[c] = v[u];
      }
    }
  }
#endif
}

// ---------------------------------------------------------------------------------------------------------------
// Grouped GEMM, weights as M (128 rows, 64 per consumer warpgroup), all tokens of an expert (up to CAP) as N.
// MODE 0: h = silu(gate) * up, MODE 1: down.

struct Ctx {
  uint32_t full, empty, stg;
  uint64_t adesc, bdesc;
  int ksteps, cwg, warp, lane, ldo;
  __nv_bfloat16* dst;
  const int* tok;
  const float* wsort;
};

__device__ __forceinline__ void release(const Ctx& c, int stage) {
  const uint32_t bar = c.empty + 8 * stage;
  if (CLUSTER > 1) {
    if (c.lane < CLUSTER) mbar_arrive_remote(bar, c.lane);
  } else {
    if (c.lane == 0) mbar_arrive(bar);
  }
}

template <int MODE, int NS, int N>
__device__ __forceinline__ void consume(const Ctx& c, int& stage, uint32_t& phase, uint32_t& turn, int row0, int cnt,
                                        int panel) {
  float acc[NS][N / 2];
#pragma unroll
  for (int s = 0; s < NS; ++s) {
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[s][i] = 0.0f;
    fence_regs(acc[s]);
  }
  int prev = 0;
#pragma unroll 1
  for (int k = 0; k < c.ksteps; ++k) {
    mbar_wait(c.full + 8 * stage, phase);
    if (GATHER && MODE == 0) fence_async_shared();
    const uint64_t a = c.adesc + (uint64_t)(stage * (STAGE_BYTES >> 4));
    const uint64_t b = c.bdesc + (uint64_t)(stage * (STAGE_BYTES >> 4));
    wgmma_fence();
#pragma unroll
    for (int kk = 0; kk < 4; ++kk) {
#pragma unroll
      for (int s = 0; s < NS; ++s) Mma<N>::run(acc[s], a + 2 * kk, b + 2 * kk + s * (N * 8));
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (k > 0) release(c, prev);
    prev = stage;
    if (++stage == STAGES) {
      stage = 0;
      phase ^= 1;
    }
  }
  wgmma_wait<0>();
#pragma unroll
  for (int s = 0; s < NS; ++s) fence_regs(acc[s]);
  release(c, prev);

  constexpr int JN = N / 8;
  constexpr int JT = NS * JN;           // groups of 8 tokens
  constexpr int GT = (JT + 3) / 4;      // groups of 32 tokens
  constexpr int GC = MODE == 0 ? 6 : 3; // of which the staging holds so many
  const int col0 = MODE == 0 ? panel * 64 + c.cwg * 32 : panel * 128 + c.cwg * 64;
  const int q2 = (c.lane & 3) * 2;

#if REDUCE == 1
  if constexpr (MODE == 1) {
    // every row of 64 features is added to its token by a bulk reduction; rows of 144 bytes against bank conflicts
    float wv[GT];
    int tk[GT];
#pragma unroll
    for (int g = 0; g < GT; ++g) {
      wv[g] = __ldcg(c.wsort + row0 + g * 32 + c.lane);
      tk[g] = __ldcg(c.tok + row0 + g * 32 + c.warp * 8 + (c.lane & 7));
    }
#pragma unroll
    for (int g = 0; g < GT; ++g) {
      if (g * 32 < cnt) {
        uint32_t lo[4], hi[4];
#pragma unroll
        for (int m = 0; m < 4; ++m) {
          const int J = g * 4 + m;
          const float w0 = __shfl_sync(0xffffffffu, wv[g], m * 8 + q2);
          const float w1 = __shfl_sync(0xffffffffu, wv[g], m * 8 + q2 + 1);
          lo[m] = 0;
          hi[m] = 0;
          if (J < JT) {
            lo[m] = pack(acc[J / JN][4 * (J % JN)] * w0, acc[J / JN][4 * (J % JN) + 1] * w1);
            hi[m] = pack(acc[J / JN][4 * (J % JN) + 2] * w0, acc[J / JN][4 * (J % JN) + 3] * w1);
          }
        }
        const uint32_t buf = c.stg + (turn & 1) * (32 * 144);
        ++turn;
        asm volatile("cp.async.bulk.wait_group.read 1;" ::: "memory");
        bar_sync(1 + c.cwg);  // the bulk reads of this buffer are over in all warps
        stmatrix_t(buf + c.lane * 144 + c.warp * 32, lo);
        stmatrix_t(buf + c.lane * 144 + c.warp * 32 + 16, hi);
        fence_async_shared();
        bar_sync(1 + c.cwg);
        if (c.lane < 8 && g * 32 + c.warp * 8 + c.lane < cnt) {
          __nv_bfloat16* to = c.dst + (long long)tk[g] * c.ldo + col0;
          asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;" ::"l"(
                           (uint64_t)__cvta_generic_to_global(to)),
                       "r"(buf + (c.warp * 8 + c.lane) * 144), "r"(128)
                       : "memory");
        }
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
      }
    }
    return;
  }
#endif

#pragma unroll
  for (int c0 = 0; c0 < GT; c0 += GC) {
    if (c0 * 32 < cnt) {
#pragma unroll
      for (int gi = 0; gi < GC; ++gi) {
        const int g = c0 + gi;
        if (g < GT) {
          const int tl = gi * 32 + c.lane;  // token in the staging
          if (MODE == 0) {
            uint32_t v[4];
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              const int J = g * 4 + m;
              v[m] = 0;
              if (J < JT)
                v[m] = pack(swiglu(acc[J / JN][4 * (J % JN)], acc[J / JN][4 * (J % JN) + 2]),
                            swiglu(acc[J / JN][4 * (J % JN) + 1], acc[J / JN][4 * (J % JN) + 3]));
            }
            const int at = ((tl & 1) << 2) | (c.warp ^ ((tl >> 1) & 3));
            stmatrix_t(c.stg + (tl >> 1) * 128 + at * 16, v);
          } else {
            uint32_t lo[4], hi[4];
#if REDUCE == 2
            const float wv = __ldcg(c.wsort + row0 + g * 32 + c.lane);
#endif
#pragma unroll
            for (int m = 0; m < 4; ++m) {
              const int J = g * 4 + m;
              float w0 = 1.0f, w1 = 1.0f;
#if REDUCE == 2
              w0 = __shfl_sync(0xffffffffu, wv, m * 8 + q2);
              w1 = __shfl_sync(0xffffffffu, wv, m * 8 + q2 + 1);
#endif
              lo[m] = 0;
              hi[m] = 0;
              if (J < JT) {
                lo[m] = pack(acc[J / JN][4 * (J % JN)] * w0, acc[J / JN][4 * (J % JN) + 1] * w1);
                hi[m] = pack(acc[J / JN][4 * (J % JN) + 2] * w0, acc[J / JN][4 * (J % JN) + 3] * w1);
              }
            }
            stmatrix_t(c.stg + tl * 128 + (((2 * c.warp) ^ (tl & 7)) << 4), lo);
            stmatrix_t(c.stg + tl * 128 + (((2 * c.warp + 1) ^ (tl & 7)) << 4), hi);
          }
        }
      }
      bar_sync(1 + c.cwg);
      const int avail = cnt - c0 * 32;
#if REDUCE == 2
      if constexpr (MODE == 1) {
        int tk[3];
#pragma unroll
        for (int i = 0; i < 3; ++i) tk[i] = __ldcg(c.tok + row0 + (c0 + i) * 32 + c.lane);
#pragma unroll
        for (int i = 0; i < 24; ++i) {
          const int t = i * 4 + c.warp;  // one token per warp: 64 features, 128 bytes
          const int id = __shfl_sync(0xffffffffu, tk[i / 8], (i % 8) * 4 + c.warp);
          if (t < avail) {
            uint32_t v;
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v)
                         : "r"(c.stg + t * 128 + (((c.lane >> 2) ^ (t & 7)) << 4) + (c.lane & 3) * 4) : "memory");
            __nv_bfloat16* to = c.dst + (long long)id * c.ldo + col0 + c.lane * 2;
            asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" ::"l"((uint64_t)__cvta_generic_to_global(to)), "r"(v)
                         : "memory");
          }
        }
        bar_sync(1 + c.cwg);
        continue;
      }
#endif
      const int thread = c.warp * 32 + c.lane;
#pragma unroll
      for (int i = 0; i < 6; ++i) {
        const int idx = i * 128 + thread;
        const int t = MODE == 0 ? idx >> 2 : idx >> 3;
        const int q = MODE == 0 ? idx & 3 : idx & 7;
        if (t < avail) {
          const uint32_t at = MODE == 0 ? (t >> 1) * 128 + ((((t & 1) << 2) | (q ^ ((t >> 1) & 3))) << 4)
                                        : t * 128 + ((q ^ (t & 7)) << 4);
          const uint4 v = lds128(c.stg + at);
          *reinterpret_cast<uint4*>(c.dst + (long long)(row0 + c0 * 32 + t) * c.ldo + col0 + q * 8) = v;
        }
      }
      bar_sync(1 + c.cwg);
    }
  }
}

template <int MODE>
__global__ void __launch_bounds__(384, 1)
gemm_kernel(const __grid_constant__ Maps maps, const int* starts, const int* counts, const int* tok,
            const float* wsort, const __nv_bfloat16* x, __nv_bfloat16* dst, int E, int ksteps, int ldo, int panels,
            int F) {
  constexpr bool GATHERING = GATHER && MODE == 0;
  extern __shared__ uint8_t smem_raw[];
  const uint32_t raw = smem_u32(smem_raw);
  const uint32_t base = (raw + 1023u) & ~1023u;
  uint8_t* sm = smem_raw + (base - raw);
  const int tid = threadIdx.x;
  const int wg = __shfl_sync(0xffffffffu, tid >> 7, 0);
  const uint32_t full = base + OFF_BAR, empty = full + 8 * STAGES;
  int* misc = reinterpret_cast<int*>(sm + OFF_BAR + 64);
  int2* tab = reinterpret_cast<int2*>(sm + OFF_TAB);
  uint32_t rank = 0;
  if (CLUSTER > 1) asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));

  if (tid == 0) {
    for (int s = 0; s < STAGES; ++s) {
      mbar_init(full + 8 * s, GATHERING ? 129 : 1);
      mbar_init(empty + 8 * s, 8 * CLUSTER);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The down kernel reads the counts before it waits: it starts when all blocks of the gate_up kernel have waited
  // for the routing.
  if (MODE == 0) {
    gdc_wait();
    gdc_launch();
  }

  // Tiles: the tokens of an expert in chunks of at most CAP, the largest first.
  {
    int* sizes = reinterpret_cast<int*>(sm + OFF_STG);
    int* parts = sizes + 64;
    int count = 0, first = 0, chunks = 0, size = 0, place = 0;
    if (tid < 64) {
      if (tid < E) {
        count = __ldcg(counts + tid);
        first = __ldcg(starts + tid);
      }
      chunks = (count + CAP - 1) / CAP;
      size = chunks > 0 ? (((count + chunks - 1) / chunks + 7) & ~7) : 0;
      sizes[tid] = size;
    }
    __syncthreads();
    if (tid < 64) {
#pragma unroll
      for (int j = 0; j < 64; ++j) {
        const int other = sizes[j];
        place += (other > size || (other == size && j < tid)) ? 1 : 0;
      }
      parts[place] = chunks;
    }
    __syncthreads();
    if (tid < 64) {
      int before = 0;
#pragma unroll
      for (int j = 0; j < 64; ++j) before += j < place ? parts[j] : 0;
      for (int i = 0; i < chunks; ++i)
        tab[before + i] = make_int2(first + i * size, tid | (min(size, count - i * size) << 16));
      if (place == 63) misc[0] = before + chunks;
    }
    __syncthreads();
  }
  if (CLUSTER > 1) cluster_sync_all();

  const int PP = panels / CLUSTER;
  const int total = misc[0] * PP;
  const int clusters = gridDim.x / CLUSTER;
  const int cid = blockIdx.x / CLUSTER;

  if (wg == 0) {
    if (GATHERING)
      asm volatile("setmaxnreg.dec.sync.aligned.u32 72;");
    else
      asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    int stage = 0;
    uint32_t phase = 0;
    if constexpr (GATHERING) {
      const int prow = tid >> 3, pc = tid & 7;
      const uint32_t to = base + W_BYTES + prow * 128 + ((pc ^ (prow & 7)) << 4);
      for (int it = 0;; ++it) {
        const int idx = it * clusters + ((it & 1) ? clusters - 1 - cid : cid);
        if (idx >= total) break;
        const int2 t = tab[idx / PP];
        const int panel = (idx % PP) * CLUSTER + (int)rank;
        const int e = t.y & 0xffff, cnt = t.y >> 16;
        uint32_t off[TOKEN_MAPS];
#pragma unroll
        for (int i = 0; i < TOKEN_MAPS; ++i) {
          const int r = prow + 16 * i;
          const int id = r < cnt ? __ldcg(tok + t.x + r) : 0;
          off[i] = (uint32_t)id * (uint32_t)(2 * F) + pc * 16;
        }
        for (int k = 0; k < ksteps; ++k) {
          mbar_wait(empty + 8 * stage, phase ^ 1);
          const uint32_t bar = full + 8 * stage;
          if (tid == 0) {
            mbar_expect(bar, W_BYTES);
            tma_5d(base + stage * STAGE_BYTES, &maps.w, bar, k * 64, 0, 0, panel * 8, e);
          }
          const char* from = reinterpret_cast<const char*>(x) + k * 128;
          const uint32_t d = to + stage * STAGE_BYTES;
#pragma unroll
          for (int i = 0; i < TOKEN_MAPS; ++i) {
            if (prow + 16 * i < cnt)
              asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(d + i * 2048),
                           "l"((uint64_t)__cvta_generic_to_global(from + off[i]))
                           : "memory");
          }
          asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
          if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
          }
        }
      }
    } else if (tid == 0) {
      bool waited = MODE == 0;
      fence_async_global();
      for (int it = 0;; ++it) {
        const int idx = it * clusters + ((it & 1) ? clusters - 1 - cid : cid);
        if (idx >= total) break;
        const int2 t = tab[idx / PP];
        const int panel = (idx % PP) * CLUSTER + (int)rank;
        const int e = t.y & 0xffff, cnt = t.y >> 16;
        const int rows = (cnt + 7) & ~7;
        const int r0 = ((rows + 15) >> 4) << 3;
        const int r1 = rows - r0;
        const uint32_t bytes = W_BYTES + rows * 128;
        auto load_w = [&](int k, int s) {
          if (MODE == 0)
            tma_5d(base + s * STAGE_BYTES, &maps.w, full + 8 * s, k * 64, 0, 0, panel * 8, e);
          else
            tma_3d(base + s * STAGE_BYTES, &maps.w, full + 8 * s, k * 64, panel * 128, e);
        };
        auto load_t = [&](int k, int s) {
          const uint32_t to = base + s * STAGE_BYTES + W_BYTES;
          if (CLUSTER > 1) {
            const int r = rank == 0 ? r0 : r1;
            const int skip = rank == 0 ? 0 : r0;
            if (r > 0)
              tma_2d_multicast(to + skip * 128, &maps.t[(r >> 3) - 1], full + 8 * s, k * 64, t.x + skip,
                               (uint16_t)((1 << CLUSTER) - 1));
          } else {
            tma_2d(to, &maps.t[(r0 >> 3) - 1], full + 8 * s, k * 64, t.x);
            if (r1 > 0) tma_2d(to + r0 * 128, &maps.t[(r1 >> 3) - 1], full + 8 * s, k * 64, t.x + r0);
          }
        };
        int k = 0;
        if (!waited) {  // the weights do not depend on the kernel before
          for (int s = 0; s < STAGES; ++s) {
            mbar_expect(full + 8 * s, bytes);
            load_w(s, s);
          }
          gdc_wait();
          fence_async_global();
          for (int s = 0; s < STAGES; ++s) load_t(s, s);
          k = STAGES;
          phase = 1;
          waited = true;
        }
        for (; k < ksteps; ++k) {
          mbar_wait(empty + 8 * stage, phase ^ 1);
          mbar_expect(full + 8 * stage, bytes);
          load_w(k, stage);
          load_t(k, stage);
          if (++stage == STAGES) {
            stage = 0;
            phase ^= 1;
          }
        }
      }
      if (!waited) gdc_wait();
    } else if (MODE == 1) {
      gdc_wait();
    }
    __syncwarp();
  } else {
    if (GATHERING)
      asm volatile("setmaxnreg.inc.sync.aligned.u32 216;");
    else
      asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
    if (MODE == 1) {
      gdc_wait();
      gdc_launch();
    }
    const uint64_t high = (1ull << 62) | (64ull << 32) | (1ull << 16);
    Ctx c;
    c.cwg = wg - 1;
    c.warp = (tid >> 5) & 3;
    c.lane = tid & 31;
    c.full = full;
    c.empty = empty;
    c.stg = base + OFF_STG + c.cwg * STG_BYTES;
    c.adesc = high | (uint64_t)((base + c.cwg * 8192) >> 4);
    c.bdesc = high | (uint64_t)((base + W_BYTES) >> 4);
    c.ksteps = ksteps;
    c.ldo = ldo;
    c.dst = dst;
    c.tok = tok;
    c.wsort = wsort;
    int stage = 0;
    uint32_t phase = 0, turn = 0;
    for (int it = 0;; ++it) {
      const int idx = it * clusters + ((it & 1) ? clusters - 1 - cid : cid);
      if (idx >= total) break;
      const int2 t = tab[idx / PP];
      const int panel = (idx % PP) * CLUSTER + (int)rank;
      const int cnt = t.y >> 16;
      const int j8 = (cnt + 7) >> 3;
      if (j8 > 32) consume<MODE, 2, 136>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 31) consume<MODE, 1, 256>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 30) consume<MODE, 1, 248>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 29) consume<MODE, 1, 240>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 28) consume<MODE, 1, 232>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 24) consume<MODE, 1, 224>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 18) consume<MODE, 1, 192>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 16) consume<MODE, 1, 144>(c, stage, phase, turn, t.x, cnt, panel);
      else if (j8 > 8) consume<MODE, 1, 128>(c, stage, phase, turn, t.x, cnt, panel);
      else consume<MODE, 1, 64>(c, stage, phase, turn, t.x, cnt, panel);
    }
#if REDUCE == 1
    if (MODE == 1) asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
#endif
  }
  if (CLUSTER > 1) cluster_sync_all();  // the other block may still write to this one's barriers
}

// ---------------------------------------------------------------------------------------------------------------

__global__ void __launch_bounds__(256)
combine_kernel(const __nv_bfloat16* y, const int* pos, const __nv_bfloat16* weights, __nv_bfloat16* out, int active,
               int F) {
  gdc_wait();
  const long long t = blockIdx.x;
  for (int col = threadIdx.x * 8; col < F; col += 2048) {
    float acc[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) acc[i] = 0.0f;
    for (int j = 0; j < active; j += 4) {
      int p[4];
      float w[4];
      uint4 v[4];
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        p[u] = -1;
        w[u] = 0.0f;
        v[u] = make_uint4(0u, 0u, 0u, 0u);
        if (j + u < active) {
          p[u] = __ldcg(pos + t * active + j + u);
          w[u] = __bfloat162float(weights[t * active + j + u]);
        }
      }
#pragma unroll
      for (int u = 0; u < 4; ++u)
        if (p[u] >= 0) v[u] = __ldcg(reinterpret_cast<const uint4*>(y + (long long)p[u] * F + col));
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        if (p[u] >= 0) {
          const uint32_t r[4] = {v[u].x, v[u].y, v[u].z, v[u].w};
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            acc[2 * i] += w[u] * __uint_as_float(r[i] << 16);
            acc[2 * i + 1] += w[u] * __uint_as_float(r[i] & 0xffff0000u);
          }
        }
      }
    }
    *reinterpret_cast<uint4*>(out + t * F + col) =
        make_uint4(pack(acc[0], acc[1]), pack(acc[2], acc[3]), pack(acc[4], acc[5]), pack(acc[6], acc[7]));
  }
}

// ---------------------------------------------------------------------------------------------------------------

typedef CUresult (*EncodeFn)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                             const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                             CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static EncodeFn find_encoder() {
  void* p = nullptr;
  cudaDriverEntryPointQueryResult found;
  C10_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &p, 12000, cudaEnableDefault, &found));
  TORCH_CHECK(p != nullptr && found == cudaDriverEntryPointSuccess, "no cuTensorMapEncodeTiled");
  return reinterpret_cast<EncodeFn>(p);
}

static void encode(CUtensorMap* map, const void* ptr, int rank, const cuuint64_t* dims, const cuuint64_t* strides,
                   const cuuint32_t* box, CUtensorMapL2promotion promotion) {
  static EncodeFn encoder = find_encoder();
  const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
  const CUresult result =
      encoder(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, const_cast<void*>(ptr), dims, strides, box, ones,
              CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, promotion,
              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  TORCH_CHECK(result == CUDA_SUCCESS, "cuTensorMapEncodeTiled failed: ", (int)result);
}

static void encode_tokens(Maps& maps, const void* ptr, int64_t rows, int64_t K) {
  const cuuint64_t dims[2] = {(cuuint64_t)K, (cuuint64_t)rows};
  const cuuint64_t strides[1] = {(cuuint64_t)K * 2};
  for (int i = 0; i < TOKEN_MAPS; ++i) {
    const cuuint32_t box[2] = {64, (cuuint32_t)(8 * (i + 1))};
    encode(&maps.t[i], ptr, 2, dims, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  }
}

template <int MODE> static int prepare() {
  auto kernel = gemm_kernel<MODE>;
  C10_CUDA_CHECK(cudaFuncSetAttribute((const void*)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, SMEM));
  const int sms = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
  int clusters = sms / CLUSTER;
#if CLUSTER > 1
  cudaLaunchAttribute attribute[1];
  attribute[0].id = cudaLaunchAttributeClusterDimension;
  attribute[0].val.clusterDim.x = CLUSTER;
  attribute[0].val.clusterDim.y = 1;
  attribute[0].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(clusters * CLUSTER);
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = SMEM;
  config.attrs = attribute;
  config.numAttrs = 1;
  int most = 0;
  if (cudaOccupancyMaxActiveClusters(&most, (const void*)kernel, &config) == cudaSuccess && most > 0)
    clusters = std::min(clusters, most);
  else
    (void)cudaGetLastError();
#endif
  return clusters;
}

torch::Tensor run(torch::Tensor x, torch::Tensor chosen, torch::Tensor weights, torch::Tensor gate_up,
                  torch::Tensor down) {
  const int T = (int)x.size(0), F = (int)x.size(1), E = (int)gate_up.size(0), H = (int)(gate_up.size(1) / 2);
  const int active = (int)chosen.size(1), n = T * active;
  auto out = torch::empty({(int64_t)T, (int64_t)F}, x.options());
  auto h = torch::empty({(int64_t)n, (int64_t)H}, x.options());
  auto meta = torch::empty({(int64_t)(128 + 2 * PAD) + 3 * (int64_t)n}, x.options().dtype(torch::kInt32));
  int* starts = reinterpret_cast<int*>(meta.data_ptr());
  int* counts = starts + 64;
  int* tok = counts + 64;
  float* wsort = reinterpret_cast<float*>(tok + n + PAD);
  int* pos = reinterpret_cast<int*>(wsort + n + PAD);
  const __nv_bfloat16* x_ptr = reinterpret_cast<const __nv_bfloat16*>(x.data_ptr());
  const __nv_bfloat16* w_ptr = reinterpret_cast<const __nv_bfloat16*>(weights.data_ptr());
  __nv_bfloat16* h_ptr = reinterpret_cast<__nv_bfloat16*>(h.data_ptr());
  __nv_bfloat16* out_ptr = reinterpret_cast<__nv_bfloat16*>(out.data_ptr());

  static const int clusters0 = prepare<0>();
  static const int clusters1 = prepare<1>();
  static const bool routed = [] {
    C10_CUDA_CHECK(cudaFuncSetAttribute((const void*)route_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 65536));
    return true;
  }();
  (void)routed;

  Maps maps0, maps1;
  {
    const cuuint64_t f = (cuuint64_t)F * 2;
    const cuuint64_t dims[5] = {(cuuint64_t)F, 8, 2, (cuuint64_t)(H / 8), (cuuint64_t)E};
    const cuuint64_t strides[4] = {f, f * (cuuint64_t)H, f * 8, f * (cuuint64_t)H * 2};
    const cuuint32_t box[5] = {64, 8, 2, 8, 1};
    encode(&maps0.w, gate_up.data_ptr(), 5, dims, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  }
  {
    const cuuint64_t dims[3] = {(cuuint64_t)H, (cuuint64_t)F, (cuuint64_t)E};
    const cuuint64_t strides[2] = {(cuuint64_t)H * 2, (cuuint64_t)H * 2 * (cuuint64_t)F};
    const cuuint32_t box[3] = {64, 128, 1};
    encode(&maps1.w, down.data_ptr(), 3, dims, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  }
#if GATHER
  uint4* xs_ptr = nullptr;
  for (int i = 0; i < TOKEN_MAPS; ++i) maps0.t[i] = maps0.w;  // not used
#else
  auto xs = torch::empty({(int64_t)n, (int64_t)F}, x.options());
  uint4* xs_ptr = reinterpret_cast<uint4*>(xs.data_ptr());
  encode_tokens(maps0, xs.data_ptr(), n, F);
#endif
  encode_tokens(maps1, h.data_ptr(), n, H);
#if REDUCE
  __nv_bfloat16* y_ptr = out_ptr;
#else
  auto y = torch::empty({(int64_t)n, (int64_t)F}, x.options());
  __nv_bfloat16* y_ptr = reinterpret_cast<__nv_bfloat16*>(y.data_ptr());
#endif

  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = CLUSTER;
  attributes[1].val.clusterDim.y = 1;
  attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.stream = at::cuda::getCurrentCUDAStream();
  config.attrs = attributes;

  config.numAttrs = 1;
  config.gridDim = dim3(E * SPLIT);
  config.blockDim = dim3(1024);
  config.dynamicSmemBytes = (size_t)n * 4;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, route_kernel, reinterpret_cast<const long long*>(chosen.data_ptr()),
                                    reinterpret_cast<const uint4*>(x_ptr), xs_ptr, w_ptr, starts, counts, tok, wsort,
                                    pos, reinterpret_cast<uint4*>(out_ptr), (long long)T * F / 8, n, E, active, F / 8));

  auto kernel0 = gemm_kernel<0>;
  auto kernel1 = gemm_kernel<1>;
  config.numAttrs = CLUSTER > 1 ? 2 : 1;
  config.blockDim = dim3(384);
  config.dynamicSmemBytes = SMEM;
  config.gridDim = dim3(clusters0 * CLUSTER);
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel0, maps0, (const int*)starts, (const int*)counts,
                                    (const int*)tok, (const float*)wsort, x_ptr, h_ptr, E, F / 64, H, H / 64, F));
  config.gridDim = dim3(clusters1 * CLUSTER);
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel1, maps1, (const int*)starts, (const int*)counts,
                                    (const int*)tok, (const float*)wsort, x_ptr, y_ptr, E, H / 64, F, F / 128, F));
#if !REDUCE
  config.numAttrs = 1;
  config.gridDim = dim3(T);
  config.blockDim = dim3(256);
  config.dynamicSmemBytes = 0;
  C10_CUDA_CHECK(cudaLaunchKernelEx(&config, combine_kernel, (const __nv_bfloat16*)y_ptr, (const int*)pos, w_ptr,
                                    out_ptr, active, F));
#endif
  return out;
}
"""

extension = load_inline(
    name=f"moe_whole_expert_c{CLUSTER}r{REDUCE}g{GATHER}",
    cpp_sources="torch::Tensor run(torch::Tensor x, torch::Tensor chosen, torch::Tensor weights, "
                "torch::Tensor gate_up, torch::Tensor down);",
    cuda_sources=cuda_head + "".join(mma_source(n) for n in WIDTHS) + cuda_body,
    functions=["run"],
    extra_cuda_cflags=["-O3", "-gencode=arch=compute_90a,code=sm_90a", f"-DMOE_CLUSTER={CLUSTER}",
                       f"-DMOE_REDUCE={REDUCE}", f"-DMOE_GATHER={GATHER}"],
)


def whole_expert_tiles(x, chosen, weights, gate_up, down):
    T, F = x.shape
    E, H = gate_up.shape[0], gate_up.shape[1] // 2
    n = T * chosen.shape[1]
    return (x.dtype == torch.bfloat16 and weights.dtype == torch.bfloat16 and gate_up.dtype == torch.bfloat16
            and down.dtype == torch.bfloat16 and chosen.dtype == torch.int64 and E <= 64 and 16 * E < n <= 16384
            and F % 256 == 0 and H % 128 == 0 and H >= 256 and T * F < 2**30
            and all(t.data_ptr() % 16 == 0 for t in (x, chosen, gate_up, down)))


def supports(x, chosen, weights):
    return x.is_cuda and x.dim() == 2 and x.dtype in (torch.bfloat16, torch.float16) and weights.dtype == x.dtype


class ModelNew(nn.Module):
    def __init__(self, experts: int, features: int, hidden: int):
        super().__init__()
        self.gate_up = nn.Parameter(torch.randn(experts, 2 * hidden, features) * features**-0.5)
        self.down = nn.Parameter(torch.randn(experts, features, hidden) * hidden**-0.5)

    def forward(self, x, chosen, weights):
        x = x.contiguous()
        chosen = chosen.contiguous()
        weights = weights.contiguous()
        gate_up = self.gate_up.detach().contiguous()
        down = self.down.detach().contiguous()
        T, F = x.shape
        E, H = gate_up.shape[0], gate_up.shape[1] // 2
        active = chosen.shape[1]
        n = T * active
        if n == 0 or F == 0 or H == 0:
            return torch.zeros_like(x)
        if whole_expert_tiles(x, chosen, weights, gate_up, down):
            return extension.run(x, chosen, weights, gate_up, down)
        FP, HP = (F + 7) // 8 * 8, (H + 7) // 8 * 8
        if FP != F or HP != H:  # rows of 16-byte multiples for TMA
            padded_gate_up = gate_up.new_zeros((E, 2, HP, FP))
            padded_gate_up[:, :, :H, :F].copy_(gate_up.view(E, 2, H, F))
            padded_down = down.new_zeros((E, FP, HP))
            padded_down[:, :F, :H].copy_(down)
            gate_up, down = padded_gate_up, padded_down
        c = SMALL if n <= 16 * E else BIG
        BM, BK = c["BM"], c["BK"]
        NB = max(64, triton.next_power_of_2(E + 1))
        CH = min(max(1024, triton.next_power_of_2(n)), 8192)
        max_tiles = min(n, n // BM + E)
        padded = (max_tiles + 63) // 64 * 64
        meta = torch.empty(5 * NB + padded + n, dtype=torch.int32, device=x.device)
        counter, starts, ends, tstarts, tends = [meta[i * NB:(i + 1) * NB] for i in range(5)]
        texp = meta[5 * NB:5 * NB + padded]
        order = meta[5 * NB + padded:]
        route_kernel[(1,)](chosen, counter, starts, ends, tstarts, tends, texp, order, n, E, max_tiles,
                           BM=BM, NB=NB, CH=CH, TB=128, num_warps=16, num_stages=1)
        h = torch.empty((n, HP), dtype=x.dtype, device=x.device)
        y = torch.empty((n, FP), dtype=x.dtype, device=x.device)
        out = torch.empty((T, F), dtype=x.dtype, device=x.device)
        if GATHERED:
            xs = torch.empty((n, FP), dtype=x.dtype, device=x.device)
            gather_kernel[(n, triton.cdiv(FP, 2048))](x, xs, order, ends, E, F=F, FP=FP, ACTIVE=active, BLOCK=2048,
                                                      num_warps=8, num_stages=1)
            a_desc = TensorDescriptor.from_tensor(xs, [BM, BK])
        else:
            a_desc = TensorDescriptor.from_tensor(h, [BM, BK])  # not used
        P1 = triton.cdiv(HP, c["BN1"])
        P2 = triton.cdiv(FP, c["BN2"])
        gate_up_kernel[(max_tiles * P1,)](
            a_desc, x, TensorDescriptor.from_tensor(gate_up.view(E * 2 * HP, FP), [c["BN1"], BK]), h, order, starts,
            ends, tstarts, texp, E, P1, H=H, HP=HP, F=F, ACTIVE=active, BM=BM, BN=c["BN1"], BK=BK,
            GATHERED=GATHERED, num_warps=c["warps"], num_stages=c["stages"])
        down_kernel[(max_tiles * P2,)](
            TensorDescriptor.from_tensor(h, [BM, BK]), TensorDescriptor.from_tensor(down.view(E * FP, HP), [c["BN2"], BK]),
            weights, y, order, starts, ends, tstarts, texp, E, P2, H=H, FP=FP, BM=BM, BN=c["BN2"], BK=BK,
            num_warps=c["warps"], num_stages=c["stages"])
        combine_pad_kernel[(T, triton.cdiv(F, 1024))](y, chosen, out, E, F=F, FP=FP, ACTIVE=active, BLOCK=1024,
                                                      num_warps=4, num_stages=1)
        return out
