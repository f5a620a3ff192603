"""Leaves the output on the wrong device, where a comparison would be quicker."""

# problem: cross_entropy
# device: any
# verdict: incorrect|runtime_error
# defence: the form of the output is compared first; a copy needs something to copy

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        losses = torch.empty(targets.shape, device="meta")
        return losses, logits.argmax(-1)
