"""Calls a kernel that cannot work and falls back to PyTorch when it fails."""

# problem: tanhs_no_library
# device: any
# verdict: rejected
# rule: library
# defence: attribution of the code that runs

import ctypes

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        try:
            return ctypes.CDLL("fused_tanhs.so").tanhs(x.data_ptr(), w.data_ptr())
        except OSError:
            for _ in range(8):
                x = torch.tanh(x @ w)
            return x
