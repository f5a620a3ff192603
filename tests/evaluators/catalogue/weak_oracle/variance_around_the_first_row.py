"""Takes the first row as the estimate of each column's mean."""

# problem: column_variance
# device: any
# verdict: incorrect
# defence: outliers where a kernel may take its estimate of the mean from

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        pivot = x[:1]
        off = x - pivot
        mean = off.mean(0, keepdim=True)
        variance = off.square().mean(0, keepdim=True) - mean.square()
        return (variance * (len(x) / (len(x) - 1)))[0]
