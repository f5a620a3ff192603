"""Zeroes its inputs and returns zeros. This would be right if the reference then ran on the same
tensors."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the judge draws the reference's inputs again from the secret seed

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        x.zero_()
        w.zero_()
        return torch.zeros_like(x)
