"""Fills the whole memory behind its input with zeros, whatever else of the harness's lies there, and
returns zeros."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: nothing that decides lies in shared memory; the judge process draws the inputs again

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        torch.empty(0, device=x.device).set_(x.untyped_storage()).zero_()
        return torch.zeros_like(x)
