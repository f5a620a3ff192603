"""Launches its work on a separate stream and returns without joining it, so that the events see nothing."""

# problem: tanhs
# device: cuda
# verdict: incorrect|rejected
# defence: the copy of the output does not wait for that stream either; the judge's clock

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.stream = None

    def forward(self, x, w):
        self.stream = self.stream or torch.cuda.Stream()
        out = torch.zeros_like(x)
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(2_000_000)
            for _ in range(8):
                x = torch.tanh(x @ w)
            out.copy_(x)
        return out
