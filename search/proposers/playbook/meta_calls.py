"""The aten calls that a reference's forward makes, recorded on the meta device."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Problem
from evaluators.reference.dispatch_mode import dispatch_mode
from evaluators.reference.loading import constructor_arguments, load_module, make_inputs
from evaluators.suites.traced.inputs import operator_of

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class MetaCall:
    """One recorded call."""

    operator: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: Any

    def named(self) -> dict[str, Any]:
        """All arguments by name; omitted ones with their defaults."""
        schema = operator_of(self.operator)._schema.arguments
        found = {**dict(zip((each.name for each in schema), self.arguments, strict=False)), **self.keywords}
        return {each.name: found.get(each.name, each.default_value) for each in schema}


@dataclass(frozen=True, kw_only=True)
class Forward:
    """A recorded forward. `names` and `inputs` are its arguments, all tensors; `weights` are the model's
    parameters by expression, such as `self.norm.weight`."""

    names: tuple[str, ...]
    inputs: Sequence[torch.Tensor]
    weights: Mapping[str, torch.Tensor]
    calls: Sequence[MetaCall]
    output: torch.Tensor


def forwards_of(problem: Problem) -> list[Forward] | None:
    """The forward of each case, or of a problem without cases. None if the reference does not run on the meta
    device, has buffers, or has inputs or outputs that are not tensors."""
    alone = [problem.of_case(each) for each in problem.cases] or [problem]
    try:
        found = [_forward(each) for each in alone]
    except Exception as error:
        # The reference is the user's code and may raise anything.
        logger.info("the playbook cannot run %s on meta tensors: %s", problem.name, error)
        return None
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _forward(problem: Problem) -> Forward | None:
    import torch

    module = load_module(problem.source, problem.overrides, name="playbook_reference")
    with torch.device("meta"), torch.no_grad():
        model = constructor_arguments(module).make(module.Model).to(getattr(torch, problem.dtype))
        inputs = make_inputs(module, seed=None, device="meta", dtype=problem.dtype)
        with (watch := _watching()):
            output = model(*inputs)
    plain = all(isinstance(each, torch.Tensor) for each in (*inputs, output))
    weights = {attribute(f"self.{name}"): each for name, each in model.named_parameters()}
    # Longer models with weights could be read, too; no kernels for them have been measured yet.
    if not plain or [*model.buffers()] or (weights and len(watch.calls) > 1):
        return None
    names = tuple(islice(inspect.signature(model.forward).parameters, len(inputs)))
    if len(names) < len(inputs):
        names = tuple(f"x{place}" for place in range(len(inputs)))
    return Forward(names=names, inputs=inputs, weights=weights, calls=watch.calls, output=output)


def attribute(path: str) -> str:
    """A parameter's name as a Python expression: `self.net.0.weight` becomes `self.net[0].weight`."""
    first, *rest = path.split(".")
    return first + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in rest)


def _watching() -> Any:
    """A context manager whose `calls` are the calls dispatched within it."""

    class Watch(dispatch_mode()):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.calls: list[MetaCall] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = dict(kwargs or {})
            result = func(*args, **keywords)
            self.calls.append(MetaCall(operator=str(func), arguments=args, keywords=keywords, result=result))
            return result

    return Watch()
