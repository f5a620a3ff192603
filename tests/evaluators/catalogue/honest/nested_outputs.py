"""Returns a dict of a tensor and a tuple with a list, as the reference does."""

# problem: nested
# device: any
# verdict: correct
# defence: containers are compared by their leaves

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        high, place = x.max(-1)
        power = torch.exp(x - high[:, None])
        return {"softmax": power / power.sum(-1, keepdim=True), "range": (x.amin(-1), [high, place])}
