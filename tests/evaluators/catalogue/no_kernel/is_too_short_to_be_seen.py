"""The library's softmax on so few numbers that a call takes microseconds."""

# problem: short_softmax_no_library
# device: cpu
# verdict: rejected
# rule: library
# defence: calls are looked at until enough of them were seen at work

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
