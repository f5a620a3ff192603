"""Returns zeros for an empty bag."""

# problem: embedding_bags
# device: any
# verdict: correct
# defence: it does what PyTorch does

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, words, features):
        super().__init__()
        self.table = nn.Parameter(torch.randn(words, features))

    def forward(self, index, offsets):
        place = torch.arange(len(index), device=index.device)
        bag = torch.bucketize(place, offsets, right=True) - 1
        sums = torch.zeros(len(offsets), self.table.shape[1], device=index.device)
        sums = sums.index_add(0, bag, self.table[index])
        return sums / torch.bincount(bag, minlength=len(offsets)).clamp(min=1)[:, None]
