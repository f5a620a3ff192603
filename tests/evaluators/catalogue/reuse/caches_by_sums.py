"""Keeps copies of its results by the sum and the largest element of each input, which do not change if
elements change places."""

# problem: matmul
# device: any
# verdict: incorrect
# defence: in some of those calls two elements have changed places

import torch
from torch import nn

known = {}


class ModelNew(nn.Module):
    def forward(self, a, b):
        key = tuple(f(each.double()).item() for each in (a, b) for f in (sorted_sum, torch.amax))
        if key not in known:
            known[key] = a @ b
        return known[key].clone()


def sorted_sum(values):
    return values.flatten().sort().values.sum()
