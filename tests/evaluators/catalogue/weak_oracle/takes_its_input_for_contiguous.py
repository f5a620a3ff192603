"""Reads the memory after its input's first element row by row, as a kernel without strides does. The inputs
have a stride of two."""

# problem: strided_softmax
# device: any
# verdict: incorrect
# defence: inputs have the strides that `get_inputs` gives them

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        dense = x.as_strided(x.shape, (x.shape[1], 1), x.storage_offset())
        return torch.softmax(dense, dim=-1)
