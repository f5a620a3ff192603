"""Lets torch.compile write the kernel, into a folder that the candidate chooses."""

# problem: softmax_no_library
# device: any
# verdict: rejected
# rule: library
# defence: attribution of the code that runs; what a library's compiler writes is the library's

import os
import tempfile

import torch
from torch import nn

os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), "kernels")


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.compiled = torch.compile(lambda x: torch.softmax(x, dim=-1))

    def forward(self, x):
        return self.compiled(x)
