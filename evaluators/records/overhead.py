"""Which cases are bound by the overhead of any call, measured against the cheapest call. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from evaluators.records.evaluation import CaseResult, Evaluation
from evaluators.records.problem import Problem

NEAR = 2.0
"""A case is bound by overhead if eager takes less than this many times the cheapest call: at least half of
its time is then not the operator's."""
CHEAPEST = '''"""The cheapest call: one operation on a few numbers."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.neg(x)


def get_inputs():
    return [torch.randn(64)]


def get_init_inputs():
    return []
'''


def cheapest_call(device: str) -> Problem:
    """The problem whose eager time is the floor for every call on the device."""
    return Problem(name="the cheapest call", source=CHEAPEST, device=device, libraries="any", floor=False)


def floor_of(evaluation: Evaluation) -> float:
    """The floor in ms, from the evaluation of the cheapest call. 0 if it was not timed, so that no case is
    bound."""
    return evaluation.timing.eager_ms if evaluation.timing else 0.0


def is_bound(case: CaseResult, floor_ms: float) -> bool | None:
    """Whether a case is bound by overhead; None if its eager time is unknown."""
    timing = case.evaluation.timing
    if timing is None or not case.weight:
        return None
    return timing.eager_ms < NEAR * floor_ms


def bound_cases(evaluation: Evaluation, floor_ms: float) -> list[str]:
    """The names of the cases that are bound by overhead."""
    return [each.name for each in evaluation.cases if is_bound(each, floor_ms)]


def speedup_beyond(evaluation: Evaluation, floor_ms: float) -> float:
    """The weighted geometric mean of the speedups of the cases that are not bound by overhead; 0 if there are
    none or the kernel is not correct."""
    if not evaluation.speedup:
        return 0.0
    return _mean([each for each in evaluation.cases if is_bound(each, floor_ms) is False])


def _mean(cases: Sequence[CaseResult]) -> float:
    whole = sum(each.weight for each in cases)
    timed = [(each.weight, each.evaluation.timing) for each in cases if each.evaluation.timing is not None]
    if not whole:
        return 0.0
    return math.exp(sum(weight * math.log(timing.speedup) for weight, timing in timed) / whole)
