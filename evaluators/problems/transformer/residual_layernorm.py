"""Adds a layer's output to the residual stream and normalises the sum with mean and variance; both are needed afterwards."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features: int):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        residual = residual + x
        return self.norm(residual), residual


rows = 8192
features = 4096


def get_inputs():
    return [torch.randn(rows, features), torch.randn(rows, features)]


def get_init_inputs():
    return [features]


def get_cases():
    return [{}, {"sizes": {"rows": 100, "features": 1001}, "weight": 0}]
