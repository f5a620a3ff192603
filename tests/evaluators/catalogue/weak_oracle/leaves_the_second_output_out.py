"""Returns only the first of two outputs, hoping that the comparison stops at the shorter list."""

# problem: cross_entropy
# device: any
# verdict: incorrect
# defence: the form of the output is compared first

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        return (nn.functional.cross_entropy(logits, targets, reduction="none"),)
