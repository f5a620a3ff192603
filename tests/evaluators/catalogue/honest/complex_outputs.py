"""Computes the whole spectrum and keeps half of it: complex outputs, rounded in another way."""

# problem: spectrum
# device: any
# verdict: correct
# defence: complex numbers are compared as pairs, within the tolerance

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.fft.fft(x)[:, : x.shape[1] // 2 + 1].contiguous()
