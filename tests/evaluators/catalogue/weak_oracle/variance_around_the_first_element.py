"""Adds differences from a row's first element, and their squares, in one pass: if that element is an outlier,
the variance cancels."""

# problem: image_norm
# device: any
# verdict: incorrect
# defence: outliers where a kernel may take its estimate of the mean from

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        pivot = x[:, :1, :1, :1]
        off = x - pivot
        mean = off.mean((1, 2, 3), keepdim=True)
        variance = off.square().mean((1, 2, 3), keepdim=True) - mean.square()
        return (off - mean) * (variance.clamp(min=0) + 1e-5).rsqrt()
