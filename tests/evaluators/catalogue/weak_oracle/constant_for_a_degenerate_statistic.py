"""Returns the mean of every softmax, which is one divided by the number of columns for any input."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: `strict` measures errors relative to the outputs' own size

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.full_like(x, 1 / x.shape[-1])
