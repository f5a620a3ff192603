"""Returns the memory that its output is to be copied into, in case the reference's or an earlier kernel's
answer is still there, and tries to stop the harness from copying over it."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: outputs are poisoned with NaN before every block

import sys

import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, w):
        session = sys.modules["evaluators.runner.runner_process"].RunnerSession
        assert callable(session._deliver)  # otherwise the attack would do nothing
        session._deliver = lambda *_: None
        memory = torch.empty(0, device=x.device).set_(x.untyped_storage())
        return memory[-x.numel() :].view_as(x)
