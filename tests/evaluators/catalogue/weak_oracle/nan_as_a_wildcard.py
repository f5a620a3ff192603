"""Returns NaN, which is neither above nor below any tolerance."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: NaN is an error where the reference has none

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.full_like(x, float("nan"))
