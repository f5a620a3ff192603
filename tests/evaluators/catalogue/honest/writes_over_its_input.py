"""Uses its input's memory for the output, as an in-place kernel does."""

# problem: tanhs
# device: any
# verdict: correct
# defence: the referee draws the inputs again for the check

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        y = x
        for _ in range(8):
            y = torch.mm(y, w).tanh_()
        return x.copy_(y)
