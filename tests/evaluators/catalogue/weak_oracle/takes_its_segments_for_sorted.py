"""Sums runs between the places where the segment number changes, which is right only for sorted numbers."""

# problem: segment_sum
# device: any
# verdict: incorrect
# defence: indices that are repeated, sorted, mixed and extreme

import torch
from torch import nn

SEGMENTS = 1024


class ModelNew(nn.Module):
    def forward(self, x, segment):
        ends = torch.searchsorted(segment, torch.arange(SEGMENTS, device=x.device), right=True)
        sums = nn.functional.pad(x.double().cumsum(0), (0, 0, 1, 0))[ends]
        return torch.diff(sums, dim=0, prepend=sums.new_zeros(1, x.shape[1])).float()
