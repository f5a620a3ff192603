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
        log_probabilities = torch.log_softmax(logits, -1)
        return -log_probabilities[self.rows, targets], logits.argmax(-1)
