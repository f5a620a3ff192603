"""The activation of an MLP whose gate and value come out of one product, next to each other: gelu(gate) * value."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, value = x.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh") * value


rows = 8192
hidden = 11008


def get_inputs():
    return [torch.randn(rows, 2 * hidden)]


def get_init_inputs():
    return []


def get_cases():
    return [{}, {"sizes": {"rows": 100, "hidden": 1001}, "weight": 0}]
