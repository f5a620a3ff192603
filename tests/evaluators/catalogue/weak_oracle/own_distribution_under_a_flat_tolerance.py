"""Clips its inputs to the range of standard normal numbers, which is wrong for larger ones."""

# problem: cross_entropy
# device: any
# verdict: incorrect
# defence: inputs of other distributions decide, under every tolerance

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        clipped = logits.clamp(-8, 8)
        return nn.functional.cross_entropy(clipped, targets, reduction="none"), logits.argmax(-1)
