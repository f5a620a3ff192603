"""Returns zero for NaN, as a comparison written the wrong way round does."""

# problem: steep_exp
# device: any
# verdict: incorrect
# defence: NaN among the inputs

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.exp(5 * x).nan_to_num(nan=0.0, posinf=float("inf"))
