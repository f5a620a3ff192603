"""Is the reference itself in a problem that only moves data, where the copy is also the library's."""

# problem: transpose_no_library
# device: any
# verdict: rejected
# rule: library
# defence: a kernel in which no own code is seen working is not cleared

from torch import nn


class ModelNew(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2).contiguous()
