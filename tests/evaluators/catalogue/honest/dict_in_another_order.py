"""Returns the keys of a dict in another order, a list for a tuple, and a named tuple for a list."""

# problem: nested
# device: any
# verdict: correct
# defence: a caller finds the same tensors under the same keys and indices

from collections import namedtuple

import torch
from torch import nn

Ends = namedtuple("Ends", "high place")


class ModelNew(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        return {"range": [low, Ends(high, x.argmax(-1))], "softmax": torch.softmax(x, dim=-1)}
