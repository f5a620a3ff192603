"""The gate of a SwiGLU layer, between its matrix products: silu(gate) * up."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


tokens = 8192
hidden = 11008


def get_inputs():
    return [torch.randn(tokens, hidden) for _ in range(2)]


def get_init_inputs():
    return []


def get_cases():
    return [
        {},
        {"sizes": {"tokens": 4096, "hidden": 3072}},
        {"sizes": {"tokens": 333, "hidden": 1001}, "weight": 0},
        {"sizes": {"tokens": 128, "hidden": 4096}, "dtype": "float32", "weight": 0},
    ]
