"""Has torch copy a transposed input before its own code runs over it, as wrappers of kernels do."""

# problem: swish_no_library
# device: cpu
# verdict: correct
# defence: only a kernel without any own code is rejected; the share is reported

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
Path("swish.c").write_text(CODE)
subprocess.run(["gcc", *FLAGS, "swish.c", "-o", "swish.so", "-lm"], check=True)
swish = ctypes.CDLL("./swish.so").swish
swish.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.t().contiguous()
        y = torch.empty_like(x)
        swish(x.data_ptr(), y.data_ptr(), x.numel())
        return y.t().contiguous()
