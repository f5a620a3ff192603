"""Fills all the memory behind its input with zeros, including anything of the harness that lies there, and
returns zeros."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: nothing that decides the verdict is in shared memory; the judge draws the inputs again

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        torch.empty(0, device=x.device).set_(x.untyped_storage()).zero_()
        return torch.zeros_like(x)
