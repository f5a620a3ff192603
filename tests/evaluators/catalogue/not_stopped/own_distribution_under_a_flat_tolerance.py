"""Clips its inputs to where standard normal numbers lie: wrong for larger ones."""

# problem: cross_entropy
# device: any
# verdict: correct
# defence: without `strict` the other distributions do not decide; the evaluation names those that failed

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        clipped = logits.clamp(-8, 8)
        return nn.functional.cross_entropy(clipped, targets, reduction="none"), logits.argmax(-1)
