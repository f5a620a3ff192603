"""Is a softmax in C whose calls take microseconds. Samples find it at work when many calls run in a row."""

# problem: short_softmax_no_library
# device: cpu
# verdict: correct
# defence: it does its work itself, in a row of calls as in single ones

import ctypes
import subprocess
from pathlib import Path

import torch
from torch import nn

CODE = """
#include <math.h>
void softmax(const float* x, float* y, long rows, long columns) {
    for (long r = 0; r < rows; r++, x += columns, y += columns) {
        float most = x[0];
        double sum = 0;
        for (long c = 0; c < columns; c++) most = x[c] > most ? x[c] : most;
        for (long c = 0; c < columns; c++) sum += y[c] = expf(x[c] - most);
        for (long c = 0; c < columns; c++) y[c] /= sum;
    }
}
"""
Path("own.c").write_text(CODE)
subprocess.run(
    ["gcc", "-O3", "-march=native", "-shared", "-fPIC", "own.c", "-o", "own.so", "-lm"], check=True
)
own = ctypes.CDLL("./own.so").softmax
own.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long, ctypes.c_long]


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        own(x.data_ptr(), y.data_ptr(), *x.shape)
        return y
