"""Clips its inputs to where standard normal numbers lie: wrong for larger ones."""

# problem: cross_entropy
# device: any
# verdict: incorrect
# defence: inputs of other distributions decide, whatever the tolerance

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        clipped = logits.clamp(-8, 8)
        return nn.functional.cross_entropy(clipped, targets, reduction="none"), logits.argmax(-1)
