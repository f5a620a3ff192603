"""Leaves ignored targets out of the sum, but counts them."""

# problem: mean_cross_entropy
# device: any
# verdict: incorrect
# defence: the reference's operators show which integers they ignore

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        kept = targets != -100
        losses = -logits.log_softmax(-1).gather(1, targets.where(kept, 0)[:, None])[:, 0]
        return torch.where(kept, losses, 0.0).mean()
