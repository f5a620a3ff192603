"""Imports the harness's own modules and replaces what decides by what agrees."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the judge is in another process

import torch
from torch import nn

from evaluators import correctness, court, referee, timing

agreed = correctness.Comparison(error=0.0, eager_error=0.0, problem="")
correctness.compare = court.compare = lambda *_: agreed
referee.audit = timing.audit = lambda *_: None
court.Court.check = lambda *_: agreed


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.zeros_like(x)
