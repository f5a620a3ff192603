"""Is the reference with its parameters, drawn in the same order."""

# problem: conv
# device: any
# verdict: correct
# defence: weights come from the same seed on both sides

from torch import nn


class ModelNew(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3)

    def forward(self, x):
        return self.conv(x).relu_()
