"""Does not subtract the row's maximum, which makes no difference for standard normal inputs."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: inputs of other distributions decide under `strict`

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        y = x.exp()
        return y / y.sum(-1, keepdim=True)
