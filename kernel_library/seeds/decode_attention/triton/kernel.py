import math

import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

PROGRAMS = 2112
BLOCK_N = 32
STAGES = 3
WARPS = 1
TMA = True  # full tiles by TMA descriptors, else by pointers


@triton.jit
def softmax_step(s, v, m, l, acc, factor, GP: tl.constexpr):
    rows = tl.arange(0, 2 * GP)
    m_new = tl.maximum(m, tl.max(s, 1))
    safe = tl.where(m_new == -float("inf"), 0.0, m_new)
    alpha = tl.exp2((m - safe) * factor)
    p = tl.exp2((s - safe[:, None]) * factor)
    l = l * alpha + tl.sum(p, 1)
    hi = p.to(v.dtype)
    lo = (p - hi.to(tl.float32)).to(v.dtype)
    pp = tl.where((rows < GP)[:, None], hi, lo)
    acc = tl.dot(pp, v, acc * alpha[:, None], input_precision="ieee")
    return m_new, l, acc


@triton.jit
def split_kernel(
    q_ptr, k_ptr, v_ptr, k_desc, v_desc, len_ptr, o_ptr, m_ptr, l_ptr,
    sqb, sqh, sqd, skb, skh, skn, skd, svb, svh, svn, svd, slen, capacity, pre, factor,
    KV: tl.constexpr, GROUP: tl.constexpr, GP: tl.constexpr, D: tl.constexpr, DP: tl.constexpr,
    SPLITS: tl.constexpr, BLOCK: tl.constexpr, NSTAGES: tl.constexpr, USE_TMA: tl.constexpr,
):
    # Rows 0..GP-1 carry the rounded probabilities of the heads, rows GP..2*GP-1 what the rounding left over:
    # the tensor core needs 16 rows anyway, so P V is exact to about 2^-17 at no cost.
    # the combine may be launched once every program of this grid has begun; it waits for our results itself
    tl.extra.cuda.gdc_launch_dependents()
    pid = tl.program_id(0)
    split = pid % SPLITS
    pair = pid // SPLITS
    b = pair // KV
    h = pair % KV
    bound = tl.minimum(tl.maximum(tl.load(len_ptr + b * slen), 0), capacity).to(tl.int32)
    chunk = ((bound + SPLITS - 1) // SPLITS + BLOCK - 1) // BLOCK * BLOCK
    start = split * chunk
    end = tl.minimum(start + chunk, bound)
    full = start + tl.maximum(end - start, 0) // BLOCK * BLOCK

    rows = tl.arange(0, 2 * GP)
    head = rows % GP
    d = tl.arange(0, DP)
    b64 = b.to(tl.int64)
    h64 = h.to(tl.int64)
    q = tl.load(
        q_ptr + b64 * sqb + (h64 * GROUP + head)[:, None] * sqh + d[None, :] * sqd,
        mask=(head < GROUP)[:, None] & (d < D)[None, :],
        other=0.0,
    )
    q = (q.to(tl.float32) * pre).to(k_ptr.dtype.element_ty)  # a power of two: exact
    k_base = k_ptr + b64 * skb + h64 * skh
    v_base = v_ptr + b64 * svb + h64 * svh

    m = tl.full((2 * GP,), -float("inf"), tl.float32)
    l = tl.zeros((2 * GP,), tl.float32)
    acc = tl.zeros((2 * GP, DP), tl.float32)

    # full tiles
    if USE_TMA:
        row0 = pair * capacity
        for n0 in tl.range(start, full, BLOCK, num_stages=NSTAGES):
            k = k_desc.load([row0 + n0, 0])
            v = v_desc.load([row0 + n0, 0])
            s = tl.dot(q, tl.trans(k), input_precision="ieee")
            m, l, acc = softmax_step(s, v, m, l, acc, factor, GP)
    else:
        for n0 in tl.range(start, full, BLOCK, num_stages=NSTAGES):
            n64 = (n0 + tl.arange(0, BLOCK)).to(tl.int64)
            k_at = k_base + n64[None, :] * skn + d[:, None] * skd
            v_at = v_base + n64[:, None] * svn + d[None, :] * svd
            if D == DP:
                kt = tl.load(k_at)
                v = tl.load(v_at)
            else:
                kt = tl.load(k_at, mask=(d < D)[:, None], other=0.0)
                v = tl.load(v_at, mask=(d < D)[None, :], other=0.0)
            s = tl.dot(q, kt, input_precision="ieee")
            m, l, acc = softmax_step(s, v, m, l, acc, factor, GP)

    # at most one tile, at the end of a sequence
    for n0 in tl.range(full, end, BLOCK, num_stages=1):
        n = n0 + tl.arange(0, BLOCK)
        ok = n < end
        n64 = n.to(tl.int64)
        k_at = k_base + n64[None, :] * skn + d[:, None] * skd
        v_at = v_base + n64[:, None] * svn + d[None, :] * svd
        kt = tl.load(k_at, mask=ok[None, :] & (d < D)[:, None], other=0.0)
        v = tl.load(v_at, mask=ok[:, None] & (d < D)[None, :], other=0.0)
        s = tl.dot(q, kt, input_precision="ieee")
        s = tl.where(ok[None, :], s, -float("inf"))
        m, l, acc = softmax_step(s, v, m, l, acc, factor, GP)

    # infinities of V make the left-over rows NaN (0 * inf): the rounded rows alone are right then
    acc = tl.where((rows < GP)[:, None] | (tl.abs(acc) < float("inf")), acc, 0.0)
    o = tl.sum(tl.reshape(acc, (2, GP, DP)), 0)
    m_out = tl.sum(tl.reshape(tl.where(rows < GP, m, 0.0), (2, GP)), 0)
    l_out = tl.sum(tl.reshape(tl.where(rows < GP, l, 0.0), (2, GP)), 0)
    g = tl.arange(0, GP)
    keep = (g < GROUP) & (start < end)
    at = (pair * SPLITS + split) * GROUP + g
    tl.store(m_ptr + at, m_out, mask=keep)
    tl.store(l_ptr + at, l_out, mask=keep)
    tl.store(o_ptr + at[:, None] * D + d[None, :], o, mask=keep[:, None] & (d < D)[None, :])


@triton.jit
def combine_kernel(
    o_ptr, m_ptr, l_ptr, len_ptr, out_ptr, slen, capacity, factor,
    KV: tl.constexpr, GROUP: tl.constexpr, D: tl.constexpr, DB: tl.constexpr,
    SPLITS: tl.constexpr, SP: tl.constexpr, SB: tl.constexpr, BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    d = tl.program_id(1) * DB + tl.arange(0, DB)
    pair = row // GROUP
    g = row % GROUP
    b = pair // KV
    bound = tl.minimum(tl.maximum(tl.load(len_ptr + b * slen), 0), capacity).to(tl.int32)
    chunk = ((bound + SPLITS - 1) // SPLITS + BLOCK - 1) // BLOCK * BLOCK
    s = tl.arange(0, SP)
    used = (s < SPLITS) & (s * chunk < bound)
    at = (pair * SPLITS + s) * GROUP + g
    tl.extra.cuda.gdc_wait()  # all partial results are complete and visible from here on
    m = tl.load(m_ptr + at, mask=used, other=-float("inf"))
    l = tl.load(l_ptr + at, mask=used, other=0.0)
    top = tl.max(m, 0)
    safe = tl.where(top == -float("inf"), 0.0, top)
    total = tl.sum(l * tl.exp2((m - safe) * factor), 0)
    acc = tl.zeros((DB,), tl.float32)
    for s0 in range(0, SPLITS, SB):
        ss = s0 + tl.arange(0, SB)
        act = (ss < SPLITS) & (ss * chunk < bound)
        where = (pair * SPLITS + ss) * GROUP + g
        w = tl.exp2((tl.load(m_ptr + where, mask=act, other=-float("inf")) - safe) * factor)
        o = tl.load(o_ptr + where[:, None] * D + d[None, :], mask=act[:, None] & (d < D)[None, :], other=0.0)
        # a part that does not exist must not turn an infinite maximum into NaN by itself
        acc += tl.sum(tl.where(act[:, None], o * w[:, None], 0.0), 0)
    out = tl.where(total == 0.0, acc, acc / total)
    tl.store(out_ptr + row.to(tl.int64) * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)


def supports(q, k_cache, v_cache, lengths):
    if not (q.is_cuda and q.dim() == 4 and k_cache.dim() == 4 and v_cache.dim() == 4 and lengths.dim() == 1):
        return False
    if q.dtype not in (torch.bfloat16, torch.float16, torch.float32):
        return False
    if k_cache.dtype != q.dtype or v_cache.dtype != q.dtype or lengths.dtype not in (torch.int64, torch.int32):
        return False
    batch, heads, queries, size = q.shape
    kv = k_cache.shape[1]
    return (
        batch > 0 and kv > 0 and queries == 1 and 1 <= size <= 256 and k_cache.shape == v_cache.shape
        and k_cache.shape[0] == batch and k_cache.shape[3] == size and k_cache.shape[2] > 0
        and lengths.shape[0] == batch and heads > 0 and heads % kv == 0 and heads // kv <= 32
    )


class ModelNew(nn.Module):
    def forward(self, q, k_cache, v_cache, lengths):
        batch, heads, _, size = q.shape
        kv, capacity = k_cache.shape[1], k_cache.shape[2]
        group = heads // kv
        pairs = batch * kv
        padded = max(16, triton.next_power_of_2(size))
        block = max(16, min(BLOCK_N, BLOCK_N * 256 // (padded * q.element_size())))
        splits = max(1, min(triton.cdiv(capacity, block), PROGRAMS // pairs))
        scale = 1.0 / math.sqrt(size)
        pre = 1.0
        if q.dtype != torch.float16:
            pre = 2.0 ** math.floor(math.log2(scale))
        factor = scale / pre * 1.4426950408889634
        out = torch.empty((batch, heads, 1, size), dtype=q.dtype, device=q.device)
        o = torch.empty((pairs, splits, group, size), dtype=torch.float32, device=q.device)
        m = torch.empty((pairs, splits, group), dtype=torch.float32, device=q.device)
        l = torch.empty((pairs, splits, group), dtype=torch.float32, device=q.device)
        tma = (
            TMA and q.element_size() == 2 and size in (64, 128) and k_cache.is_contiguous() and v_cache.is_contiguous()
            and k_cache.data_ptr() % 16 == 0 and v_cache.data_ptr() % 16 == 0
            and pairs * capacity < 2**31 - 2 * block and capacity >= block
        )
        k_desc, v_desc = k_cache, v_cache
        if tma:
            k_desc = TensorDescriptor.from_tensor(k_cache.view(pairs * capacity, size), [block, size])
            v_desc = TensorDescriptor.from_tensor(v_cache.view(pairs * capacity, size), [block, size])
        split_kernel[(pairs * splits,)](
            q, k_cache, v_cache, k_desc, v_desc, lengths, o, m, l,
            q.stride(0), q.stride(1), q.stride(3),
            k_cache.stride(0), k_cache.stride(1), k_cache.stride(2), k_cache.stride(3),
            v_cache.stride(0), v_cache.stride(1), v_cache.stride(2), v_cache.stride(3),
            lengths.stride(0), capacity, pre, factor,
            KV=kv, GROUP=group, GP=max(8, triton.next_power_of_2(group)), D=size, DP=padded,
            SPLITS=splits, BLOCK=block, NSTAGES=STAGES, USE_TMA=tma,
            num_warps=WARPS, num_stages=STAGES,
        )
        db = min(32, padded)
        combine_kernel[(batch * heads, triton.cdiv(size, db))](
            o, m, l, lengths, out, lengths.stride(0), capacity, factor,
            KV=kv, GROUP=group, D=size, DB=db,
            SPLITS=splits, SP=triton.next_power_of_2(splits), SB=min(32, triton.next_power_of_2(splits)),
            BLOCK=block, num_warps=4, num_stages=1, launch_pdl=True,
        )
        return out
