"""Wrong: LayerNorm that scales by the root mean square and forgets the mean."""

import torch
import triton
import triton.language as tl
from torch import nn


@triton.jit
def sums(x, total, size, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(1), tl.program_id(0)
    values = tl.load(x + row.to(tl.int64) * size + chunk * CHUNK + tl.arange(0, CHUNK))
    tl.atomic_add(total + row * 2, tl.sum(values).to(tl.float64))
    tl.atomic_add(total + row * 2 + 1, tl.sum(values * values).to(tl.float64))


@triton.jit
def normalise(x, w, b, y, total, size, eps, CHUNK: tl.constexpr):
    row, chunk = tl.program_id(1), tl.program_id(0)
    scale = tl.rsqrt((tl.load(total + row * 2 + 1) / size).to(tl.float32) + eps)
    at = chunk * CHUNK + tl.arange(0, CHUNK)
    values = tl.load(x + row.to(tl.int64) * size + at)
    tl.store(y + row.to(tl.int64) * size + at, values * scale * tl.load(w + at) + tl.load(b + at))


class ModelNew(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.ln = nn.LayerNorm(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = self.ln.weight.numel()
        rows, chunks = x.numel() // size, size // 8192
        total = torch.zeros(rows, 2, device=x.device, dtype=torch.float64)
        y = torch.empty_like(x)
        sums[(chunks, rows)](x, total, size, CHUNK=8192)
        normalise[(chunks, rows)](x, self.ln.weight, self.ln.bias, y, total, size, self.ln.eps, CHUNK=8192)
        return y
