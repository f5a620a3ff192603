"""References made of a function and of inputs that a test draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evaluators.records.problem import Problem
from evaluators.reference.reference_model import ReferenceModel

SOURCE = """
from torch import nn
from tests.evaluators import references

class Model(nn.Module):
    def forward(self, *inputs):
        return references.CURRENT[0](*inputs)

def get_inputs():
    return references.CURRENT[1]()

def get_init_inputs():
    return []
"""
CURRENT: list[Callable[..., Any]] = []


def session_of(function: Callable[..., Any], draw: Callable[[], list[Any]], **rules: str) -> ReferenceModel:
    """A session of this reference; `rules` are fields of a problem. One lives at a time."""
    CURRENT[:] = [function, draw]
    return ReferenceModel(problem_of(SOURCE, **rules))


def problem_of(source: str, **rules: Any) -> Problem:
    """A problem on a CPU."""
    return Problem(name="test", source=source, **rules)
