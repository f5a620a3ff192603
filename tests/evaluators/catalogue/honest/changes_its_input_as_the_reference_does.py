"""Changes its input where the reference does, in the same way."""

# problem: in_place_tanh
# device: any
# verdict: correct
# defence: inputs that the reference changes are compared too

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        torch.tanh(x, out=x)
        return torch.nn.functional.linear(x, w.t())
