"""Computes the two halves of the rows on two streams and joins both before it returns."""

# problem: tanhs
# device: cuda
# verdict: correct
# defence: work that the current stream waits for is part of the time

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.side = None

    def forward(self, x, w):
        self.side = self.side or torch.cuda.Stream()
        here, y, half = torch.cuda.current_stream(), torch.empty_like(x), len(x) // 2
        self.side.wait_stream(here)
        with torch.cuda.stream(self.side):
            y[:half] = tanhs(x[:half], w)
        y[half:] = tanhs(x[half:], w)
        here.wait_stream(self.side)
        return y


def tanhs(x, w):
    for _ in range(8):
        x = torch.tanh(x @ w)
    return x
