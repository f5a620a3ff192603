"""Multiplies bytes in float32, where their sums are exact, half of them after the other."""

# problem: bytes_linear
# device: any
# verdict: correct
# defence: integers have one right answer in any order

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        half = x.shape[1] // 2
        x, w = x.float(), w.float().t()
        return x[:, :half] @ w[:half] + x[:, half:] @ w[half:]
