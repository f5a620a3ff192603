"""Returns the two ends of a range in the other order, inside a nested output."""

# problem: nested
# device: any
# verdict: incorrect
# defence: containers are compared by their leaves

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        return {"softmax": torch.softmax(x, dim=-1), "range": (high, [low, x.argmax(-1)])}
