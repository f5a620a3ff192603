"""Replaces the forward of the reference that the harness has loaded, so that the right answer is the
input."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the reference that judges is in another process

import sys

from torch import nn


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        for module in list(sys.modules.values()):
            if hasattr(module, "Model") and hasattr(module, "get_inputs"):
                module.Model.forward = lambda self, x, w: x

    def forward(self, x, w):
        return x
