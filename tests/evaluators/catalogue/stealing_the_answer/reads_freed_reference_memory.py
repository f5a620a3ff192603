"""Returns freshly allocated memory without writing to it, hoping that the allocator hands out the block
that held the reference's output a moment ago."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the reference runs in another process

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.empty_like(x)
