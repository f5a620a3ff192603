"""Returns the conjugates of complex numbers, whose real parts are right."""

# problem: spectrum
# device: any
# verdict: incorrect
# defence: complex numbers are compared as pairs

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.fft.rfft(x).conj_physical()
