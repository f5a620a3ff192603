"""Allocates its first output in every call and keeps the second, which is small."""

# problem: cross_entropy
# device: any
# verdict: incorrect
# defence: every output of the first call is kept and compared again

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.largest = None

    def forward(self, logits, targets):
        if self.largest is None:
            self.largest = torch.empty_like(targets)
        losses = nn.functional.cross_entropy(logits, targets, reduction="none")
        return losses, torch.argmax(logits, -1, out=self.largest)
