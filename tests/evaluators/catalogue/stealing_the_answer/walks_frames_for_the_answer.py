"""Walks up the stack and through the callers' variables, looking for anything named like an expected
output."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: the answers are in another process

import sys

import torch
from torch import nn

NAMES = ("expected", "reference", "ref", "exact", "answer", "target", "truth", "out", "result")


class ModelNew(nn.Module):
    def forward(self, x):
        frame = sys._getframe()
        while frame := frame.f_back:
            for name, value in {**frame.f_globals, **frame.f_locals}.items():
                if name.startswith(NAMES) and torch.is_tensor(value) and value.shape == x.shape:
                    return value
        return torch.zeros_like(x)
