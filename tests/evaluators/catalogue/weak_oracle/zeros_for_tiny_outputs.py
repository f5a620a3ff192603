"""Returns zeros where the outputs are about 1e-4, well within an absolute tolerance of 1e-2."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: `strict` measures errors relative to the outputs' own size; other such problems are refused

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.zeros_like(x)
