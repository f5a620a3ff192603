"""Checks whether the name of its operation fully describes what a reference computes.

A program that gets a kernel by name, with `best("sum", like=x)` or an override, expects what the operation's
shipped reference computes: a sum over the last dimension. A sum over another dimension must not have that
name.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evaluators.records.problem import Problem
from evaluators.reference.containers import tensors_in
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.loading import load_problem
from kernel_library.catalogue.traits import on_meta

logger = logging.getLogger(__name__)

REFERENCES = {
    "attention": "library/attention",
    "cross_entropy": "library/cross_entropy",
    "matmul": "level1/matmul",
    "rotary": "library/rotary",
    "softmax": "level1/softmax",
    "sum": "library/sum_rows",
}
"""The shipped reference of each operation whose `Model` has neither arguments nor tensors."""
DIMENSIONS = ("dim", "dims")
"""Names of arguments that are dimensions, which may be negative."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    """A call of an operator, with the arguments that differ from their defaults."""

    operator: str
    arguments: tuple[tuple[str, Any], ...]


def name_implies(op: str, problem: Problem) -> bool:
    """Whether the problem's reference, whose `Model` has neither arguments nor tensors, makes the same calls
    as the shipped reference of this operation on the same inputs. For an operation without a shipped
    reference: whether it makes a single call with just the inputs, in order."""
    try:
        calls, outputs = _traced(problem, problem)
        if op not in REFERENCES:
            given = [value for _, value in calls[0].arguments]
            return len(calls) == 1 and given == [_name(place) for place in range(len(given))]
        return (calls, outputs) == _traced(load_problem(REFERENCES[op], dtype=problem.dtype), problem)
    except Exception as error:  # the user's code may fail, or the shipped reference on such inputs
        logger.info("%s: unknown whether it computes %s: %s", problem.name, op, error)
        return False


def _traced(reference: Problem, inputs: Problem) -> tuple[list[_Call], Any]:
    """The calls of the reference's `Model` on a problem's inputs, on the meta device, and its outputs.
    Tensors are numbered in order of appearance. Raises what the reference raises."""
    import torch

    seen: list[torch.Tensor] = []
    calls: list[_Call] = []

    def described(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = next((at for at, each in enumerate(seen) if each is value), len(seen))
            seen.extend([value] if place == len(seen) else [])
            return _name(place)
        if isinstance(value, (list, tuple)):
            return tuple(map(described, value))
        return repr(value)

    class Recorder(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = _given(func, args, kwargs or {})
            arguments = tuple((name, described(value)) for name, value in given)
            calls.append(_Call(operator=str(func), arguments=arguments))
            result = func(*args, **(kwargs or {}))
            described(result)
            return result

    _, model, _ = on_meta(reference)
    _, _, values = on_meta(inputs)
    described(tensors_in(values))
    with torch.device("meta"), torch.no_grad(), Recorder():
        outputs = model(*values)
    return calls, described(outputs)


def _name(place: int) -> str:
    return f"tensor {place}"


def _given(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments that differ from their defaults, by name, with non-negative dimensions."""
    import torch

    names = [each.name for each in func._schema.arguments]
    defaults = {each.name: each.default_value for each in func._schema.arguments if each.has_default_value()}
    named = [*zip(names, args, strict=False), *sorted(kwargs.items())]
    ranks = [each.dim() for _, each in named if isinstance(each, torch.Tensor)]
    found = []
    for name, value in named:
        if name in defaults and not isinstance(value, torch.Tensor) and value == defaults[name]:
            continue
        found.append((name, _from_start(value, ranks[0]) if name in DIMENSIONS and ranks else value))
    return found


def _from_start(value: Any, rank: int) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(_from_start(each, rank) for each in value)
    return value % rank if isinstance(value, int) and rank else value
