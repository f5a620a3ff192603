"""Makes a transposed input contiguous before it works on it."""

# problem: transposed_sum
# device: any
# verdict: correct
# defence: copies are allowed

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.tanh(x.contiguous()).sum(-1)
