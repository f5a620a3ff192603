"""The square of ReLU, the activation of Primer's MLP."""

import torch
from torch import nn
from torch.nn import functional as F


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x).square()


tokens = 8192
hidden = 12288


def get_inputs():
    return [torch.randn(tokens, hidden)]


def get_init_inputs():
    return []
