"""Compiles a C kernel and loads it, but never calls it."""

# problem: softmax_no_library
# device: cpu
# verdict: rejected
# rule: library
# defence: attribution of the code that runs

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

Path("decoy.c").write_text("void softmax(const float* x, float* y, int n) { for (; n--; x++) *y++ = *x; }")
subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "decoy.c", "-o", "decoy.so"], check=True)
decoy = ctypes.CDLL("./decoy.so")


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
