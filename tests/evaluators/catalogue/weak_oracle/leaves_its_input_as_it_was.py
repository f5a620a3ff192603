"""Leaves its input unchanged where the reference changes it."""

# problem: in_place_tanh
# device: any
# verdict: incorrect
# defence: inputs that the reference changes are compared too

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.tanh(x) @ w
