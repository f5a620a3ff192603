"""Ends a product of float16 factors with a maximum that is zero for NaN."""

# problem: relu_matmul_of_float16_factors
# device: any
# verdict: incorrect
# defence: NaN that an output depends on

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, a, b):
        return torch.fmax(a.half().float() @ b.half().float(), torch.zeros((), device=a.device))
