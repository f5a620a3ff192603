"""Returns its only output in a list."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: the structure of the output is compared with the reference's

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return [torch.softmax(x, dim=-1)]
