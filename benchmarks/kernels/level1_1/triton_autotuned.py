"""4096³ matmul in float32: block sizes chosen by Triton's autotuner on the first call."""

import torch
import triton
import triton.language as tl
from torch import nn

CONFIGS = [
    triton.Config({"M": 64, "N": 64, "K": 16}, num_warps=4),
    triton.Config({"M": 128, "N": 64, "K": 16}, num_warps=8),
    triton.Config({"M": 128, "N": 128, "K": 16}, num_warps=8),
]


@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def matmul(a, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(1) * M + tl.arange(0, M)
    cols = tl.program_id(0) * N + tl.arange(0, N)
    inner = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, n, K):
        left = tl.load(a + rows[:, None] * n + k + inner[None, :])
        right = tl.load(b + (k + inner)[:, None] * n + cols[None, :])
        total += tl.dot(left, right, input_precision="ieee")
    tl.store(c + rows[:, None] * n + cols[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        n = a.shape[0]
        c = torch.empty_like(a)
        matmul[lambda chosen: (n // chosen["N"], n // chosen["M"])](a, b, c, n)
        return c
