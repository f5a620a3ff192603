"""Returns 1e30 where eager returns infinity."""

# problem: steep_exp
# device: any
# verdict: incorrect
# defence: non-finite answers are compared with eager's

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.exp(5 * x).clamp(max=1e30)
