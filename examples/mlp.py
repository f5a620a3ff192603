"""Residual layers with a hand-written GELU, as in many models."""

import math

import torch
from torch import nn

rows, width = 512, 512


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(width, width) for _ in range(3)])
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        for layer in self.layers:
            y = layer(x)
            x = x + 0.5 * y * (1.0 + torch.tanh(math.sqrt(2 / math.pi) * (y + 0.044715 * y * y * y)))
        return self.norm(x)


def get_inputs():
    return [torch.randn(rows, width)]


def get_init_inputs():
    return []
