"""A linear layer at decoding: few rows times weights of 8 bits with one scale for each row of weights."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight.to(x.dtype)) * scales


rows = 1
features = 8192
out_features = 8192


def get_inputs():
    weight = torch.randint(-127, 128, (out_features, features), dtype=torch.int8)
    return [torch.randn(rows, features), weight, torch.rand(out_features) * 0.02]


def get_init_inputs():
    return []


def get_cases():
    return [
        {},
        {"sizes": {"rows": 16}},
        {"sizes": {"rows": 3, "features": 1000, "out_features": 513}, "weight": 0},
    ]
