"""Computes in float16 where the task is in float32."""

# problem: softmax
# device: any
# verdict: incorrect
# defence: `strict` allows four times eager's own error

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x.half(), dim=-1).float()
