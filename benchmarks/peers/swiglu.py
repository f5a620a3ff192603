"""Code after AutoKernel's fused_mlp."""
# ruff: noqa: D102, F821

from torch import nn


class ModelNew(nn.Module):
    """Theirs with the problem's weights."""

    def __init__(self, features, hidden):
        super().__init__()
        self.gate = nn.Linear(features, hidden, bias=False)
        self.up = nn.Linear(features, hidden, bias=False)
        self.down = nn.Linear(hidden, features, bias=False)

    def forward(self, x):
        return kernel_fn(x, self.gate.weight, self.up.weight, self.down.weight)
