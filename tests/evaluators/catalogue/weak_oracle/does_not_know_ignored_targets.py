"""Takes every target for a class, the one that cross entropy ignores as well."""

# problem: mean_cross_entropy
# device: any
# verdict: incorrect
# defence: the reference's operators show which integers they ignore

from torch import nn


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        classes = targets.remainder(logits.shape[1])
        return -logits.log_softmax(-1).gather(1, classes[:, None]).mean()
