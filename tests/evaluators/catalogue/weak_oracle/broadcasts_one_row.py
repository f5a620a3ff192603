"""Computes the first row and presents it as all the others, with a stride of zero."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: every element is compared

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x[:1], dim=-1).expand_as(x)
