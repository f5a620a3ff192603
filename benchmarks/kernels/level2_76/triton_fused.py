"""Matrix product with bias and ReLU in one kernel, float32 throughout."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def linear_relu(x, w, bias, y, inner, outputs, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.program_id(1) * M + tl.arange(0, M)
    cols = tl.program_id(0) * N + tl.arange(0, N)
    steps = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, inner, K):
        left = tl.load(x + rows[:, None] * inner + k + steps[None, :])
        right = tl.load(w + cols[None, :] * inner + (k + steps)[:, None])
        total += tl.dot(left, right, input_precision="ieee")
    found = tl.maximum(total + tl.load(bias + cols)[None, :], 0.0)
    tl.store(y + rows[:, None] * outputs + cols[None, :], found)


class ModelNew(nn.Module):
    def __init__(self, inputs: int, outputs: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.gemm = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outputs, inner = self.gemm.weight.shape
        y = x.new_empty(x.shape[0], outputs)
        grid = (outputs // 64, x.shape[0] // 128)
        linear_relu[grid](x, self.gemm.weight, self.bias, y, inner, outputs, M=128, N=64, K=16)
        return y
