"""Runs the reference through TorchScript."""

# problem: tanhs_no_library
# device: any
# verdict: rejected
# rule: library
# defence: attribution of the code that runs

import torch
from torch import nn


def tanhs(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(8):
        x = torch.tanh(x @ w)
    return x


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        example = torch.zeros(2, 2)
        self.traced = torch.jit.trace(tanhs, (example, example))

    def forward(self, x, w):
        return self.traced(x, w)
