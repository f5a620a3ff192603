"""Code after a file whose `kernel_fn` takes the problem's inputs."""
# ruff: noqa: D102, F821

from torch import nn


class ModelNew(nn.Module):
    """Has no weights."""

    def forward(self, *inputs):
        return kernel_fn(*inputs)
