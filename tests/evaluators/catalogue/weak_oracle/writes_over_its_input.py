"""Uses its input's memory for the output, as an in-place kernel does, where the reference leaves it alone."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: inputs are as they were after the call, unless the reference changes them

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        y = x
        for _ in range(8):
            y = torch.mm(y, w).tanh_()
        return x.copy_(y)
