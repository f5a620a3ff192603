"""The MLP of a language model: down(silu(gate(x)) * up(x))."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


tokens = 2048
features = 4096
hidden = 11008


def get_inputs():
    return [torch.randn(tokens, features)]


def get_init_inputs():
    return [features, hidden]
