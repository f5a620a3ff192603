"""Switches the tensor cores' TF32 on for a product that the task asks for in float32."""

# problem: matmul
# device: cuda
# verdict: incorrect
# defence: `strict` allows four times eager's own error, and eager's setting is not the candidate's to change

import torch
from torch import nn

torch.backends.cuda.matmul.allow_tf32 = True


class ModelNew(nn.Module):
    def forward(self, a, b):
        return a @ b
