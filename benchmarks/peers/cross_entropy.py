"""Code after AutoKernel's cross_entropy."""
# ruff: noqa: D102, F821

import torch
from torch import nn


class ModelNew(nn.Module):
    """Launches their kernel: `kernel_fn` averages the losses, and the problem wants them, at its dtype."""

    def forward(self, logits, target):
        rows, classes = logits.shape
        losses = torch.empty(rows, device=logits.device)
        block = triton.next_power_of_2(classes)
        cross_entropy_kernel[(rows,)](logits, target, losses, classes, logits.stride(0), BLOCK_SIZE=block)
        return losses.to(logits.dtype)
