"""Returns tensors over NumPy's memory, of which it keeps 100 arrays and uses them in turn."""

# problem: softmax
# device: cpu
# verdict: incorrect
# defence: memory that torch did not allocate counts as kept by the kernel until its addresses repeat

import numpy
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.arrays, self.calls = [], 0

    def forward(self, x):
        self.calls += 1
        if len(self.arrays) < 100:
            self.arrays.append(numpy.empty(tuple(x.shape), numpy.float32))
        output = torch.from_numpy(self.arrays[self.calls % len(self.arrays)])
        return torch.softmax(x, dim=-1, out=output)
