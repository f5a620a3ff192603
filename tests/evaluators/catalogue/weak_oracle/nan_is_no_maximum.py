"""Finds the place of the largest number that is not NaN."""

# problem: nested
# device: any
# verdict: incorrect
# defence: NaN among the inputs: PyTorch takes it for the largest

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        low, high = torch.aminmax(x, dim=-1)
        place = x.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf).argmax(-1)
        return {"softmax": torch.softmax(x, dim=-1), "range": (low, [high, place])}
