"""A linear layer at decoding: few rows times weights of 4 bits, two per byte (the lower half first), with one
scale for every 128 elements of a row."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, x: torch.Tensor, packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
        quantised = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
        weight = (quantised.to(x.dtype) - 8) * scales.repeat_interleave(128, dim=1)
        return F.linear(x, weight)


rows = 1
features = 8192
out_features = 8192


def get_inputs():
    packed = torch.randint(256, (out_features, features // 2), dtype=torch.uint8)
    return [torch.randn(rows, features), packed, torch.rand(out_features, features // 128) * 0.02]


def get_init_inputs():
    return []


def get_cases():
    return [{}, {"sizes": {"rows": 8}}]
