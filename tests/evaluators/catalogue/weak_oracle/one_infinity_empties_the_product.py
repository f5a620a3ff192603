"""Scales a factor by its largest element, so one infinity in it turns the whole product into zero or
NaN."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: outputs that an infinity in a product does not reach must not change

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        scale = a.abs().amax().clamp(min=1e-30)
        scaled = torch.where(scale.isfinite(), a / scale, 0.0)
        return torch.where(scale.isfinite(), (scaled.double() @ b.double() * scale).to(a.dtype), 0.0)
