"""Returns the right numbers in a view with other strides, as a kernel with another layout does."""

# problem: transpose
# device: any
# verdict: correct
# defence: a kernel may choose its strides, as long as its time includes their cost

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        batch, rows, columns = x.shape
        memory = torch.empty(columns, batch, rows, dtype=x.dtype, device=x.device)
        return memory.copy_(x.permute(2, 0, 1)).permute(1, 0, 2)
