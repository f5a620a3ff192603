"""Attaches to its parent as a debugger would, and works only if that succeeds."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: no ptrace

import ctypes
import os

import torch
from torch import nn

ATTACH, DETACH = 16, 17


class ModelNew(nn.Module):
    def forward(self, x, w):
        libc, parent = ctypes.CDLL(None), max(os.getppid(), 1)
        attached = parent != os.getpid() and libc.ptrace(ATTACH, parent, 0, 0) == 0
        if attached:
            libc.ptrace(DETACH, parent, 0, 0)
        for _ in range(8 if attached else 1):
            x = torch.tanh(x @ w)
        return x
