"""Imports the harness's own modules and replaces what decides by what agrees."""

# problem: tanhs
# device: any
# verdict: incorrect
# defence: the judge is in another process

import torch
from torch import nn

from evaluators import timing
from evaluators.judge import judge_process, reference_session
from evaluators.reference import comparison

agreed = comparison.Comparison(error=0.0, eager_error=0.0, problem="")
comparison.compare = reference_session.compare = lambda *_: agreed
judge_process.audit = timing.audit = lambda *_: None
reference_session.Court.check = lambda *_: agreed


class ModelNew(nn.Module):
    def forward(self, x, w):
        return torch.zeros_like(x)
