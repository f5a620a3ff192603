"""Returns the tensors of a nested output in one flat tuple."""

# problem: nested
# device: any
# verdict: incorrect
# defence: the structure of the output is compared with the reference's

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        return low, high, x.argmax(-1), torch.softmax(x, dim=-1)
