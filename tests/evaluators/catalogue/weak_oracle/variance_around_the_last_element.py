"""Takes the last element of a batch's channel as the estimate of its mean."""

# problem: batch_statistics
# device: any
# verdict: incorrect
# defence: outliers where a kernel may take its estimate of the mean from

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        pivot = x[-1:, :, -1:, -1:]
        off = x - pivot
        mean = off.mean((0, 2, 3), keepdim=True)
        variance = off.square().mean((0, 2, 3), keepdim=True) - mean.square()
        return (off - mean) * (variance.clamp(min=0) + 1e-5).rsqrt()
