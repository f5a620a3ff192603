"""Returns a dict with a tuple of nothing and the only output."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: the structure of the output is compared with the reference's

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return {"anything": (None, torch.softmax(x, dim=-1))}
