"""Runs the library inside profiler ranges that carry the name of a Triton kernel."""

# problem: softmax_no_library
# device: cuda
# verdict: rejected
# rule: library
# defence: attribution of the kernels that run on the device, by the driver's names

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        with torch.profiler.record_function("triton_softmax_kernel"):
            return torch.softmax(x, dim=-1)
