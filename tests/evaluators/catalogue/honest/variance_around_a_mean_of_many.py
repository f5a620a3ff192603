"""Takes sums of squares around a first estimate of the mean that no single element decides."""

# problem: image_norm
# device: any
# verdict: correct
# defence: an estimate that is good enough loses no digits

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        pivot = x.mean((1, 2, 3), keepdim=True)
        off = x - pivot
        mean = off.mean((1, 2, 3), keepdim=True)
        variance = off.square().mean((1, 2, 3), keepdim=True) - mean.square()
        return (off - mean) * (variance.clamp(min=0) + 1e-5).rsqrt()
