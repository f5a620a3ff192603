"""After a file whose `kernel_fn` takes what the problem gives."""
# ruff: noqa: D102, F821

from torch import nn


class ModelNew(nn.Module):
    """Has no weights."""

    def forward(self, *inputs):
        return kernel_fn(*inputs)
