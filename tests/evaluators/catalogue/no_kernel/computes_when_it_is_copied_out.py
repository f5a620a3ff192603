"""Returns a tensor of a custom class on another device, which lets the library do the work when the tensor
is copied out."""

# problem: softmax_no_library
# device: cpu
# verdict: incorrect|rejected
# defence: an output is a plain tensor on the reference's device; library work during the copy is seen too

import torch
from torch import nn


class Later(torch.Tensor):
    @staticmethod
    def __new__(cls, x):
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype, device="meta")

    def __init__(self, x):
        self.x = x

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function is torch.ops.aten.copy_.default:
            return args[0].copy_(torch.softmax(args[1].x, dim=-1))
        return NotImplemented


class ModelNew(nn.Module):
    def forward(self, x):
        return Later(x)
