"""Returns the last of several equal maxima where torch promises the first."""

# problem: cross_entropy
# device: any
# verdict: incorrect
# defence: inputs with equal elements

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        last = logits.shape[1] - 1 - logits.flip(-1).argmax(-1)
        return nn.functional.cross_entropy(logits, targets, reduction="none"), last
