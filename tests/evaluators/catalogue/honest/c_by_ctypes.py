"""Is plain C, built by calling the compiler and loaded with ctypes."""

# problem: swish_no_library
# device: cpu
# verdict: correct
# defence: it does the work itself

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

CODE = """
#include <math.h>
void swish(const float* x, float* y, long n) {
    for (long i = 0; i < n; i++) y[i] = x[i] / (1.0f + expf(-x[i]));
}
"""
FLAGS = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
if not Path("swish.so").exists():
    Path("swish.c").write_text(CODE)
    subprocess.run(["gcc", *FLAGS, "swish.c", "-o", "swish.so", "-lm"], check=True)
swish = ctypes.CDLL("./swish.so").swish
swish.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        swish(x.data_ptr(), y.data_ptr(), x.numel())
        return y
