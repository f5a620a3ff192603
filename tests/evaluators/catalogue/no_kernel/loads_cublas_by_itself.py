"""Calls cuBLAS through ctypes, without PyTorch."""

# problem: tanhs_no_library
# device: cuda
# verdict: rejected
# rule: library
# defence: the library is removed from the process; attribution of the code that runs

import ctypes
from pathlib import Path

import torch
from torch import nn


def cublas():
    """cuBLAS where the process has it already, or the file that PyTorch would load."""
    loaded = [
        line.split()[-1]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if "libcublas.so" in line
    ]
    nearby = [str(path) for path in Path(torch.__file__).parents[1].glob("nvidia/**/libcublas.so*")]
    return ctypes.CDLL((loaded + nearby + ["libcublas.so"])[0])


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.library, self.handle = cublas(), ctypes.c_void_p()
        self.library.cublasCreate_v2(ctypes.byref(self.handle))
        self.one, self.zero = ctypes.c_float(1), ctypes.c_float(0)

    def forward(self, x, w):
        n = x.shape[0]
        for _ in range(8):
            y = torch.empty_like(x)
            w_, x_, y_ = (ctypes.c_void_p(t.data_ptr()) for t in (w, x, y))
            one, zero = ctypes.byref(self.one), ctypes.byref(self.zero)
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            self.library.cublasSetStream_v2(self.handle, stream)
            status = self.library.cublasSgemm_v2(self.handle, 0, 0, n, n, n, one, w_, n, x_, n, zero, y_, n)
            if status:
                raise RuntimeError(f"cuBLAS: {status}")
            x = y.tanh_()
        return x
