"""Returns the mean of the losses, which broadcasts against all of them."""

# problem: cross_entropy
# device: any
# verdict: incorrect
# defence: the form of the output is compared first

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        return nn.functional.cross_entropy(logits, targets), logits.argmax(-1)
