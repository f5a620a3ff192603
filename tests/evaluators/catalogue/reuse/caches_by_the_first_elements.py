"""Keeps copies of its results by the first 64 elements of the input."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: calls on inputs that differ from the first call's in some elements, anywhere

import torch
from torch import nn

known = {}


class ModelNew(nn.Module):
    def forward(self, x):
        key = tuple(x.flatten()[:64].tolist())
        if key not in known:
            known[key] = torch.softmax(x, dim=-1)
        return known[key].clone()
