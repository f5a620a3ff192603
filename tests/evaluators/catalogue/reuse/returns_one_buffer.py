"""Keeps its intermediate and output buffers from call to call and overwrites all of them, including the
output that a caller may still hold."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the first call's outputs are kept and compared again after all others

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffers = None

    def forward(self, x, w):
        if self.buffers is None:
            self.buffers = [torch.empty_like(x), torch.empty_like(x)]
        for layer in range(8):
            out = self.buffers[layer % 2]
            torch.mm(x, w, out=out)
            x = out.tanh_()
        return x
