"""Returns a tensor of one row that claims to have all of them, so that the harness's copy broadcasts it."""

# problem: softmax
# device: any
# verdict: incorrect|crashed
# defence: every element is compared

import torch
from torch import nn


class Row(torch.Tensor):
    @property
    def shape(self):
        return self.pretended


class ModelNew(nn.Module):
    def forward(self, x):
        row = torch.softmax(x[:1], dim=-1).as_subclass(Row)
        row.pretended = x.shape
        return row
