"""Keeps its intermediate buffers from call to call and overwrites all of them; only the output is new."""

# problem: tanhs
# device: any
# verdict: correct
# defence: nothing that it keeps is in the memory that it returns

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffers = None

    def forward(self, x, w):
        if self.buffers is None:
            self.buffers = [torch.empty_like(x), torch.empty_like(x)]
        for layer in range(7):
            out = self.buffers[layer % 2]
            torch.mm(x, w, out=out)
            x = out.tanh_()
        return (x @ w).tanh_()
