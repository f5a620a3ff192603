"""Returns a transposed view, so that the harness's copy of the output does the work."""

# problem: transpose
# device: any
# verdict: rejected|incorrect|no_gain
# defence: the copy counts

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)
