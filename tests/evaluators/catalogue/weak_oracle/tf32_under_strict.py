"""Switches on the tensor cores' TF32 for a product where the task is in float32."""

# problem: matmul
# device: cuda
# verdict: incorrect
# defence: `strict` allows four times eager's own error, and a candidate cannot change eager's setting

import torch
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
