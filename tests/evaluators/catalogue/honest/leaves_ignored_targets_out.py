"""Takes the mean over the targets that cross entropy does not ignore."""

# problem: mean_cross_entropy
# device: any
# verdict: correct
# defence: it does what PyTorch does, for no targets as well

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        kept = targets != -100
        losses = -logits.log_softmax(-1).gather(1, targets.where(kept, 0)[:, None])[:, 0]
        return torch.where(kept, losses, 0.0).sum() / kept.sum()
