"""Calls torch's softmax, whose kernel for rows of up to 1024 does not bear torch's name. On a CPU its calls
take microseconds, so samples rarely catch them."""

# problem: short_softmax_no_library
# device: any
# verdict: rejected
# rule: library
# defence: a library's kernels are known from its files; many short calls are sampled together

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
