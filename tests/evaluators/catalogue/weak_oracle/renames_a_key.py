"""Returns the right tensors under other keys that sort alike."""

# problem: nested
# device: any
# verdict: incorrect
# defence: the keys of a dict must be the reference's

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        return {"ranges": (low, [high, x.argmax(-1)]), "softmaxes": torch.softmax(x, dim=-1)}
