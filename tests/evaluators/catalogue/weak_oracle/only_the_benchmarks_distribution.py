"""Leaves out the row's maximum, which changes nothing as long as the inputs are standard normal."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: inputs of other distributions, which decide under `strict`

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.exp()
        return y / y.sum(-1, keepdim=True)
