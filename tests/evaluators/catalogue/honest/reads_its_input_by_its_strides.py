"""Takes a strided input as it is and returns a dense output."""

# problem: strided_softmax
# device: any
# verdict: correct
# defence: outputs are compared in the reference's layout

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        power = torch.exp(x - x.amax(-1, keepdim=True))
        return (power / power.sum(-1, keepdim=True)).contiguous()
