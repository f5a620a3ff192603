"""A linear layer with few outputs: a low-rank projection, or the logits of a small head."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.linear(x, weight)


rows = 6000
features = 8192
out_features = 128


def get_inputs():
    return [torch.randn(rows, features), torch.randn(out_features, features) / features**0.5]


def get_init_inputs():
    return []


def get_cases():
    return [
        {},
        {"sizes": {"rows": 8192, "features": 4096, "out_features": 64}},
        {"sizes": {"rows": 64, "features": 8192, "out_features": 8192}},
        {"sizes": {"rows": 333, "features": 1000, "out_features": 40}, "weight": 0},
    ]
