"""The reference itself where that only moves data: the copy is a library's, too."""

# problem: transpose_no_library
# device: any
# verdict: rejected
# rule: library
# defence: who shows no work of its own is not cleared

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous()
