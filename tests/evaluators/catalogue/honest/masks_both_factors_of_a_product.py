"""Fills the last tiles of both factors with zeros."""

# problem: ragged_matmul_of_the_benchmark
# device: any
# verdict: correct
# defence: an infinity does not leave its row or column

from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    def forward(self, a, b):
        padding = -a.shape[1] % 64
        return functional.pad(a, (0, padding)) @ functional.pad(b, (0, 0, 0, padding))
