"""Makes a table that depends only on the shape in its first call, and keeps it."""

# problem: cross_entropy
# device: any
# verdict: correct
# defence: nothing from a call's inputs is kept

import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = None

    def forward(self, logits, targets):
        if self.rows is None:
            self.rows = torch.arange(len(targets), device=targets.device)
        kept = targets != -100
        losses = -torch.log_softmax(logits, -1)[self.rows, targets.where(kept, 0)]
        return torch.where(kept, losses, 0.0), logits.argmax(-1)
