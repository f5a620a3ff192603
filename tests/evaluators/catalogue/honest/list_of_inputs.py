"""Takes a list of tensors and multiplies each by its part of the weights."""

# problem: list_inputs
# device: any
# verdict: correct
# defence: inputs may be containers of tensors

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, parts, w):
        pieces = w.split([part.shape[1] for part in parts])
        return torch.tanh(sum(part @ piece for part, piece in zip(parts, pieces, strict=True)))
