"""The calls that a plain reference's forward comes to, on tensors without numbers."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Problem
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.loading import load_module, make_inputs
from evaluators.suites.trace_inputs import operator_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Made:
    """A call as it is made."""

    operator: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: Any

    def given(self) -> dict[str, Any]:
        """All arguments by their names, those that are left out with their defaults."""
        schema = operator_of(self.operator)._schema.arguments
        found = {**dict(zip((each.name for each in schema), self.arguments, strict=False)), **self.keywords}
        return {each.name: found.get(each.name, each.default_value) for each in schema}


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A model's forward: its arguments, all of them tensors, with their `names`, and the model's parameters
    (`weights`), by the expressions for them."""

    names: tuple[str, ...]
    inputs: Sequence[torch.Tensor]
    weights: Mapping[str, torch.Tensor]
    calls: Sequence[Made]
    output: torch.Tensor


def forwards_of(problem: Problem) -> list[Forward] | None:
    """Of each case, or of the problem where it has none; None where the reference cannot be run so, has
    weights, or has other inputs or outputs than tensors."""
    alone = [problem.of_case(each) for each in problem.cases] or [problem]
    try:
        found = [_forward(each) for each in alone]
    except Exception as error:
        # The reference is the user's code: whatever it raises, it cannot be run without numbers.
        logger.info("the playbook cannot run %s on meta tensors: %s", problem.name, error)
        return None
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _forward(problem: Problem) -> Forward | None:
    import torch

    module = load_module(problem.source, problem.overrides, name="playbook_reference")
    with torch.device("meta"), torch.no_grad():
        model = module.Model(*module.get_init_inputs()).to(getattr(torch, problem.dtype))
        inputs = make_inputs(module, seed=None, device="meta", dtype=problem.dtype)
        with (watch := _watching()):
            output = model(*inputs)
    plain = all(isinstance(each, torch.Tensor) for each in (*inputs, output))
    weights = {attribute(f"self.{name}"): each for name, each in model.named_parameters()}
    # Longer models with weights are left out: their kernels have not been measured.
    if not plain or [*model.buffers()] or (weights and len(watch.calls) > 1):
        return None
    names = tuple(islice(inspect.signature(model.forward).parameters, len(inputs)))
    if len(names) < len(inputs):
        names = tuple(f"x{place}" for place in range(len(inputs)))
    return Forward(names=names, inputs=inputs, weights=weights, calls=watch.calls, output=output)


def attribute(path: str) -> str:
    """`self.net.0.weight` as Python writes it: `self.net[0].weight`."""
    first, *rest = path.split(".")
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _watching() -> Any:
    """A block in which `calls` has every call that is dispatched."""

    class Watch(dispatch_mode()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[Made] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = dict(kwargs or {})
            result = func(*args, **keywords)
            self.calls.append(Made(operator=str(func), arguments=args, keywords=keywords, result=result))
            return result

    return Watch()
