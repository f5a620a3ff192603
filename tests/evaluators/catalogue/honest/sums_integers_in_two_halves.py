"""Adds both halves of each row in 64 bits."""

# problem: integer_sum
# device: any
# verdict: correct
# defence: integers have one right answer in any order

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        half = x.shape[1] // 2
        return x[:, :half].sum(-1) + x[:, half:].sum(-1)
