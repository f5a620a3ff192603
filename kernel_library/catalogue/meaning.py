"""Whether the name of its family says all of what a reference computes.

Who takes a kernel by that name, `best("sum", like=x)` or an override, calls it for what the family's shipped
reference computes: a sum over the last dimension. The name says nothing of a sum over another one.
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
"""The shipped reference of each family whose `Model` takes nothing and holds nothing."""
DIMENSIONS = ("dim", "dims")
"""The names of arguments that count dimensions, from the end where they are negative."""


@dataclass(frozen=True, kw_only=True)
class _Call:
    """Of an operator, with the arguments that do not have their defaults."""

    operator: str
    arguments: tuple[tuple[str, Any], ...]


def name_implies(op: str, problem: Problem) -> bool:
    """Whether the problem's reference, which takes nothing and holds nothing, makes the calls that the
    shipped reference of this family makes on the same inputs; of a family without one, a single call that is
    given the inputs, in their order, and nothing else."""
    try:
        calls, outputs = _traced(problem, problem)
        if op not in REFERENCES:
            given = [value for _, value in calls[0].arguments]
            return len(calls) == 1 and given == [_name(place) for place in range(len(given))]
        return (calls, outputs) == _traced(load_problem(REFERENCES[op], dtype=problem.dtype), problem)
    except Exception as error:  # the reference is the user's code, or the family's is not for such inputs
        logger.info("%s: whether it is %s cannot be told: %s", problem.name, op, error)
        return False


def _traced(reference: Problem, inputs: Problem) -> tuple[list[_Call], Any]:
    """What the reference's `Model` calls on the inputs of a problem, on the meta device, and its outputs.
    Tensors are told apart by when they were seen first. Raises what the reference raises."""
    import torch

    seen: list[torch.Tensor] = []
    calls: list[_Call] = []

    def told(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            place = next((at for at, each in enumerate(seen) if each is value), len(seen))
            seen.extend([value] if place == len(seen) else [])
            return _name(place)
        if isinstance(value, (list, tuple)):
            return tuple(map(told, value))
        return repr(value)

    class Recorder(dispatch_mode()):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = _given(func, args, kwargs or {})
            arguments = tuple((name, told(value)) for name, value in given)
            calls.append(_Call(operator=str(func), arguments=arguments))
            result = func(*args, **(kwargs or {}))
            told(result)
            return result

    _, model, _ = on_meta(reference)
    _, _, values = on_meta(inputs)
    told(tensors_in(values))
    with torch.device("meta"), torch.no_grad(), Recorder():
        outputs = model(*values)
    return calls, told(outputs)


def _name(place: int) -> str:
    return f"tensor {place}"


def _given(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> list[tuple[str, Any]]:
    """The arguments by name, without those that have their defaults; dimensions counted from the start."""
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
