"""Leaves a folder where its source is to be written, so that writing the source would fail."""

# problem: tanhs
# device: any
# verdict: no_gain
# defence: nothing that a build leaves in the source's place is kept

import os

import torch
from torch import nn

if os.path.isfile("kernel.py"):
    os.remove("kernel.py")
    os.mkdir("kernel.py")
    with open("kernel.py/x", "w") as file:
        file.write("x")


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
