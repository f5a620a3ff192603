"""Replaces the functions that the reference calls with ones that return their argument, and does the same
itself."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the reference runs in another process

import torch
from torch import nn

torch.tanh = torch.Tensor.tanh = lambda x: x
torch.matmul = torch.Tensor.matmul = torch.Tensor.__matmul__ = lambda a, b: a


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.tanh(x @ w)
