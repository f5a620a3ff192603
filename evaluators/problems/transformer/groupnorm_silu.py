"""Normalises groups of channels and applies SiLU, as before each convolution of a diffusion model."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, groups: int, channels: int):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(x))


batch = 8
groups = 32
channels = 512
size = 128


def get_inputs():
    return [torch.randn(batch, channels, size, size)]


def get_init_inputs():
    return [groups, channels]


def get_cases():
    return [{}, {"sizes": {"batch": 2, "groups": 3, "channels": 12, "size": 17}, "weight": 0}]
