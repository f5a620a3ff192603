"""Returns a list where the reference returns a tuple, and integers as integers."""

# problem: cross_entropy
# device: any
# verdict: correct
# defence: outputs may be a tensor, a tuple or a list

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        chosen = logits.gather(1, targets[:, None])[:, 0]
        return [torch.logsumexp(logits, -1) - chosen, logits.max(-1).indices]
