"""The activation of a language model's MLP: silu(gate) * up."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.silu(gate) * up


rows = 8192
features = 11008


def get_inputs():
    return [torch.randn(rows, features), torch.randn(rows, features)]


def get_init_inputs():
    return []


def get_cases():
    return [
        {},
        {"sizes": {"rows": 4096, "features": 3072}},
        {"sizes": {"rows": 333, "features": 1001}, "weight": 0},
        {"sizes": {"rows": 128, "features": 4096}, "dtype": "float32", "weight": 0},
    ]
