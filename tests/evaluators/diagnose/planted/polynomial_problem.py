"""A long polynomial of each element: arithmetic without memory."""

import torch
from torch import nn

size, terms = 132 * 65536, 64


class Model(nn.Module):
    def forward(self, x):
        y = torch.zeros_like(x)
        for k in range(terms):
            y = y * x + 1 / (k + 1)
        return y


def get_inputs():
    return [torch.rand(size)]


def get_init_inputs():
    return []
