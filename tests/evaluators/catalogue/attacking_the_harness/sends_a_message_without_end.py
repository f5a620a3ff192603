"""Sends bytes without a line end, until the judge has no memory left for them."""

# problem: tanhs
# device: any
# verdict: rejected|timeout|crashed
# rule: forged message
# defence: a limit on a message's length

import os

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        for _ in range(200):
            os.write(3, b"[" * 2**20)
        return torch.zeros_like(x)
