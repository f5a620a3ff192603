"""Writes to standard output and error and collects garbage in every call, as code under development
does."""

# problem: tanhs
# device: any
# verdict: correct
# defence: output goes to a separate file, and the time is the kernel's own affair

import gc
import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        print("a call", x.shape)
        print("a warning", file=sys.stderr)
        gc.collect(0)
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
