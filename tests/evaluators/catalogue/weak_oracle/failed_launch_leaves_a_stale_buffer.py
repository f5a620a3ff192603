"""Swallows the error of its main path, which always fails, and returns a buffer that was right once."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: every call has new inputs

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.buffer = None

    def forward(self, x, w):
        if self.buffer is None:
            self.buffer = x
            for _ in range(8):
                self.buffer = torch.tanh(self.buffer @ w)
        try:
            torch.mm(x, w, out=self.buffer[:, :0].double())
        except RuntimeError:
            pass
        return self.buffer
