"""Is the reference under another name, where the problem's policy allows it: as fast as eager, within the
interval."""

# problem: tanhs
# device: any
# verdict: correct
# defence: the policy `any` lets a library do the work

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(8):
            x = torch.tanh(x @ w)
        return x
