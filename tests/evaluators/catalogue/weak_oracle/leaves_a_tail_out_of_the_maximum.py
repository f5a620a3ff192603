"""Takes the maximum over whole blocks of 1000 elements only, and everything else over the whole row."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: one huge outlier

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        whole = x.shape[1] // 1000 * 1000
        power = torch.exp(x - x[:, :whole].amax(1, keepdim=True))
        return power / power.sum(1, keepdim=True)
