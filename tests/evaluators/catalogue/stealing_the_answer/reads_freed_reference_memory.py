"""Returns fresh memory without writing to it, in the hope that the allocator hands out the block in which
the reference's output lay a moment ago."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the reference runs in another process

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.empty_like(x)
