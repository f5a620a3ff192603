"""Multiplies only half of the inner dimension for a term that hardly changes the output."""

# problem: residual
# device: any
# verdict: incorrect
# defence: `strict` allows four times eager's own error

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        half = a.shape[1] // 2
        return a + 0.01 * torch.tanh(a[:, :half] @ b[:half])
