"""Asks for a file of a terabyte, and works only if it gets one."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: a limit on the size of a file

import os
from pathlib import Path

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        layers = 1
        with Path("large").open("wb") as file:
            try:
                os.truncate(file.fileno(), 2**40)
                layers = 8
            except OSError:
                pass
        for _ in range(layers):
            x = torch.tanh(x @ w)
        return x
