"""The gate of a GEGLU layer, between its matrix products: gelu(gate) * up, with the tanh formula."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return F.gelu(gate, approximate="tanh") * up


tokens = 8192
hidden = 9216


def get_inputs():
    return [torch.randn(tokens, hidden) for _ in range(2)]


def get_init_inputs():
    return []
