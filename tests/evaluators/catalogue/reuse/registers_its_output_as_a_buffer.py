"""Registers the output as one of the module's own buffers, as if it were a running statistic."""

# problem: transpose
# device: any
# verdict: incorrect
# defence: outputs may lie in a weight or a buffer only where the reference's do

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("output", torch.empty(0))

    def forward(self, x):
        if not self.output.numel():
            self.output = torch.empty_like(x.mT.contiguous())
        return self.output.copy_(x.mT)
