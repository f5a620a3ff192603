"""Is the reference under another name."""

# problem: softmax_no_library
# device: any
# verdict: rejected
# rule: library
# defence: attribution of the code that runs

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
