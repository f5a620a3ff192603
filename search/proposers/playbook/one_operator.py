"""Reads a plain reference whose forward is one of PyTorch's operators on its inputs, such as an activation:
the templates for operators' problems are for it, too."""

from __future__ import annotations

import ast
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

from evaluators.problem import Problem
from evaluators.reference.containers import map_tensors
from evaluators.reference.loading import load_module
from evaluators.suites.trace_inputs import operator_of, takes_tensors
from evaluators.suites.trace_recording import call_of
from evaluators.suites.traced_call import Call, Constant, Value
from search.proposers.playbook.constructor import constructor_of
from search.proposers.playbook.operator_problem import (
    arguments_of,
    family_of,
    has_no_lists,
    in_place,
    signature_of,
)
from search.proposers.playbook.workload import Workload

logger = logging.getLogger(__name__)

NO_CONSTRUCTOR = "def __init__(self):\n    super().__init__()"


def one_operator_workload(problem: Problem) -> Workload | None:
    """The workload; None for every other reference, and for one with cases in which the operator is given
    other numbers beside its tensors."""
    code = constructor_of(problem)
    if code is None:
        return None
    alone = [problem.of_case(each) for each in problem.cases] or [problem]
    try:
        made = [_only_call(each) for each in alone]
    except Exception as error:
        # The reference is the user's code: whatever it raises, it cannot be run without numbers.
        logger.info("the playbook cannot run %s on meta tensors: %s", problem.name, error)
        return None
    calls = [call_of(each.operator, each.arguments, each.keywords, "meta") for each in made if each]
    if len(calls) < len(made) or len({(each.operator, _constants(each)) for each in calls}) > 1:
        return None
    first = calls[0]
    family = family_of(first.operator)
    if family is None or in_place(first.operator) or not all(map(has_no_lists, calls)):
        return None
    signatures = [each for call in calls if (each := signature_of(call, problem.device)) is not None]
    if not signatures:
        return None
    header, constructor = code
    return Workload(
        op=family,
        header=header,
        constructor=_with_constants(constructor, first),
        dtype=problem.dtype,
        operator=first.operator,
        signatures=tuple(dict.fromkeys(signatures)),
    )


@dataclass(frozen=True, kw_only=True)
class _Made:
    """A call as it is made."""

    operator: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    result: Any

    def tensors(self) -> list[Any]:
        """Its arguments that are tensors, in the order of the operator's schema."""
        schema = operator_of(self.operator)._schema.arguments
        names = [each.name for each in schema]
        given = {**dict(zip(names, self.arguments, strict=False)), **self.keywords}
        found = [given.get(each.name) for each in schema if takes_tensors(each)]
        return [each for each in found if each is not None]


def _only_call(problem: Problem) -> _Made | None:
    """The one call that a forward on meta tensors comes to; None unless its tensors are the inputs, in their
    order, its result is the output, and the model has no weights. Raises what the reference raises."""
    import torch

    module = load_module(problem.source, problem.overrides, name="playbook_reference")
    dtype: torch.dtype = getattr(torch, problem.dtype)
    with torch.device("meta"), torch.no_grad():
        model = module.Model(*module.get_init_inputs()).to(dtype)
        made = module.get_inputs()
        inputs = map_tensors(lambda each: each.to(dtype) if each.is_floating_point() else each, list(made))
        with (watch := _watching()):
            output = model(*inputs)
    calls: list[_Made] = watch.calls
    if len(calls) != 1 or output is not calls[0].result or [*model.parameters(), *model.buffers()]:
        return None
    tensors = calls[0].tensors()
    same = len(tensors) == len(inputs) and all(map(is_, tensors, inputs))
    return calls[0] if same else None


def _watching() -> Any:
    """A block in which `calls` has every call that is dispatched."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.calls: list[_Made] = []

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            keywords = dict(kwargs or {})
            result = func(*args, **keywords)
            self.calls.append(_Made(operator=str(func), arguments=args, keywords=keywords, result=result))
            return result

    return Watch()


def _with_constants(constructor: str, call: Call) -> str:
    """A constructor that stores what the operator is given beside tensors as the templates want it."""
    text = constructor or NO_CONSTRUCTOR
    indent = " " * ast.parse(text).body[0].body[0].col_offset  # type: ignore[attr-defined]
    return "\n".join([text, *(f"{indent}self.{name}_ = {value}" for name, value in _constants(call))])


def _constants(call: Call) -> tuple[tuple[str, str], ...]:
    """What the operator is given beside tensors, by its names, as Python writes it."""
    arguments = operator_of(call.operator)._schema.arguments
    given = arguments_of(call)
    return tuple((each.name, _written(given[each.name])) for each in arguments if not takes_tensors(each))


def _written(value: Value) -> str:
    """As Python writes it."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_written, value))}]"
    return f"torch.{value.name}" if isinstance(value, Constant) else repr(value)
