"""Returns a subclass of Tensor whose `shape` does the work: a harness that looks at the form of the output
first triggers the computation after the call was timed."""

# problem: tanhs
# device: any
# verdict: rejected|incorrect|no_gain
# defence: the judge's own clock over each block

import torch
from torch import nn


class Output(torch.Tensor):
    @property
    def shape(self):
        plain = self.as_subclass(torch.Tensor)
        if hasattr(self, "work"):
            x, w = self.work
            del self.work
            for _ in range(8):
                x = torch.tanh(x @ w)
            plain.copy_(x)
        return plain.shape


class ModelNew(nn.Module):
    def forward(self, x, w):
        out = torch.empty_like(x).as_subclass(Output)
        out.work = (x, w)
        return out
