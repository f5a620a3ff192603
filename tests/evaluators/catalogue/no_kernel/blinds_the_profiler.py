"""Replaces the profiler's entry and exit functions, so that attribution inside this process sees nothing,
and lets the library do the work."""

# problem: softmax_no_library
# device: cuda
# verdict: rejected
# rule: library
# defence: the device's own records; a candidate that launches no own kernel is rejected

import torch
from torch import nn

torch.profiler.profile.start = lambda *_, **__: None
torch.profiler.profile.stop = lambda *_, **__: None
torch.profiler.profile.events = lambda *_, **__: []
torch.autograd.profiler.profile.__enter__ = lambda self: self
torch.autograd.profiler.profile.__exit__ = lambda *_: None
for name in ("_prepare_profiler", "_enable_profiler", "_disable_profiler"):
    if hasattr(torch._C._autograd, name):
        setattr(torch._C._autograd, name, lambda *_, **__: None)


class ModelNew(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=-1)
