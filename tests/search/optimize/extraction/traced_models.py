"""Small traced models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from search.optimize.extraction.fragments import Fragment, fragment_of
from search.optimize.extraction.traced_model import TracedModel, trace_model
from search.optimize.profiling.chains import find_chains
from tests.search.optimize.example_models import Function, loaded


def traced(module: nn.Module | Callable[..., Any], *inputs: torch.Tensor) -> TracedModel:
    model = module if isinstance(module, nn.Module) else Function(module)
    return trace_model(loaded(model.eval(), *inputs))


def at_shapes(module: nn.Module | Callable[..., Any], *shapes: tuple[torch.Tensor, ...]) -> list[TracedModel]:
    """One model at several input shapes with equal weights, named a, b, …"""
    model = module if isinstance(module, nn.Module) else Function(module)
    models = [loaded(model.eval(), *inputs) for inputs in shapes]
    named = zip("abcd", models, strict=False)
    return [trace_model(replace(each, shape=name, weight=1 / len(models))) for name, each in named]


def places(made: TracedModel, *names: str) -> tuple[int, ...]:
    """The indices of the first call of each operator."""
    found = [call.name for call in made.run.calls]
    return tuple(found.index(name) for name in names)


def chain(made: TracedModel, most: int = 64) -> Fragment:
    """The longest chain of at most `most` calls."""
    chains = [each.places for each in find_chains(made.run) if len(each.places) <= most]
    return fragment_of(made.graph, made.run, max(chains, key=len))
