"""Never reads a mask that is all true in every draw."""

# problem: masked_softmax
# device: any
# verdict: incorrect
# defence: boolean inputs are all true, all false and mixed

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, mask):
        return torch.softmax(x, dim=-1)
