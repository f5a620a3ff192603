"""Layer normalisation over the last three dimensions: few, very long rows."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, normalized_shape: tuple):
        super().__init__()
        self.norm = nn.LayerNorm(normalized_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


batch = 16
features = 64
height = 256
width = 256


def get_inputs():
    return [torch.randn(batch, features, height, width)]


def get_init_inputs():
    return [(features, height, width)]
