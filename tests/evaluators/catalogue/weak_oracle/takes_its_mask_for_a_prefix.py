"""Counts the true elements in a row of the mask and uses that number of elements from the left."""

# problem: padded_sum
# device: any
# verdict: incorrect
# defence: boolean inputs are all true, all false and mixed

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, mask):
        kept = torch.arange(x.shape[1], device=x.device) < mask.sum(-1, keepdim=True)
        return torch.where(kept, torch.tanh(x), 0).sum(-1)
