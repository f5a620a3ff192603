"""Returns a list where the reference returns a tuple, and integers as integers."""

# problem: cross_entropy
# device: any
# verdict: correct
# defence: outputs may be a tensor, a tuple or a list

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        kept = targets != -100
        chosen = logits.gather(1, targets.where(kept, 0)[:, None])[:, 0]
        losses = torch.where(kept, torch.logsumexp(logits, -1) - chosen, 0.0)
        return [losses, logits.max(-1).indices]
