"""Reads a reference whose forward calls one PyTorch operator on its inputs, such as an activation. The
templates for operator problems apply to it, too."""

from __future__ import annotations

import ast
from operator import is_

from evaluators.records.problem import Problem
from evaluators.suites.traced.call import Constant, TracedCall, Value
from evaluators.suites.traced.inputs import operator_of, takes_tensors
from evaluators.suites.traced.recording import call_of
from search.proposers.playbook.constructor import constructor_of
from search.proposers.playbook.meta_calls import Forward, forwards_of
from search.proposers.playbook.operator_problem import (
    arguments_of,
    family_of,
    has_no_lists,
    in_place,
    rows_of_operator,
    signature_of,
)
from search.proposers.playbook.workload import Workload

NO_CONSTRUCTOR = "def __init__(self):\n    super().__init__()"


def one_operator_workload(problem: Problem) -> Workload | None:
    """The workload; None for any other reference, and if the cases pass different numbers to the operator."""
    code = constructor_of(problem)
    if code is None:
        return None
    calls = [_only_call(each) for each in forwards_of(problem) or ()]
    known = [each for each in calls if each is not None]
    different = {(each.operator, constants_of(each)) for each in known}
    if not known or len(known) < len(calls) or len(different) > 1:
        return None
    first = known[0]
    family = family_of(first.operator)
    if family is None or in_place(first.operator) or not all(map(has_no_lists, known)):
        return None
    signatures = [each for call in known if (each := signature_of(call, problem.device)) is not None]
    if not signatures:
        return None
    header, constructor = code
    return Workload(
        op=family,
        header=header,
        constructor=with_constants(constructor, constants_of(first)),
        dtype=problem.dtype,
        operator=first.operator,
        signatures=tuple(dict.fromkeys(signatures)),
        rows=rows_of_operator(first.operator),
    )


def _only_call(forward: Forward) -> TracedCall | None:
    """The only call of a forward; None unless its tensors are the inputs in order and its result the
    output."""
    if forward.weights or len(forward.calls) != 1 or forward.output is not forward.calls[0].result:
        return None
    call = forward.calls[0]
    given, schema = call.named(), operator_of(call.operator)._schema.arguments
    found = [given[each.name] for each in schema if takes_tensors(each)]
    tensors = [each for each in found if each is not None]
    if len(tensors) != len(forward.inputs) or not all(map(is_, tensors, forward.inputs)):
        return None
    return call_of(call.operator, call.arguments, call.keywords, "meta")


def with_constants(constructor: str, constants: tuple[tuple[str, str], ...]) -> str:
    """A constructor that also stores an operator's constants under the names that templates use."""
    if not constants:
        return constructor
    text = constructor or NO_CONSTRUCTOR
    indent = " " * ast.parse(text).body[0].body[0].col_offset  # type: ignore[attr-defined]
    return "\n".join([text, *(f"{indent}self.{name}_ = {value}" for name, value in constants)])


def constants_of(call: TracedCall) -> tuple[tuple[str, str], ...]:
    """The names of the operator's arguments that are not tensors, with Python expressions for their
    values."""
    arguments = operator_of(call.operator)._schema.arguments
    given = arguments_of(call)
    return tuple((each.name, _written(given[each.name])) for each in arguments if not takes_tensors(each))


def _written(value: Value) -> str:
    """A Python expression for the value."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_written, value))}]"
    return f"torch.{value.name}" if isinstance(value, Constant) else repr(value)
