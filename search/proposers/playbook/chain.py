"""Reads a plain reference whose forward is a chain of element-wise operators, such as an activation that is
written out: one kernel reads its inputs and writes its output."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from evaluators.problem import Problem
from evaluators.suites.trace_inputs import operator_of, takes_tensors
from search.proposers.playbook.constructor import constructor_of
from search.proposers.playbook.formulas import OPERANDS, Formula, formula_of
from search.proposers.playbook.meta_calls import Forward, Made, forwards_of
from search.proposers.playbook.operator_problem import in_place
from search.proposers.playbook.workload import Signature, Workload

if TYPE_CHECKING:
    pass

SAME = ("aten._to_copy.default", "aten.detach.default", "aten.alias.default")
"""Operators whose result is their input, but for its type."""
POWERS = {"2.0": "a * a", "3.0": "a * a * a"}
"""Of `pow` with such a number."""


class _NoChainError(Exception):
    """The forward is none."""


def chain_workload(problem: Problem) -> Workload | None:
    """The workload; None for every other reference, and for one whose cases compute different things."""
    code, forwards = constructor_of(problem), forwards_of(problem)
    if code is None or not forwards:
        return None
    try:
        formulas = [_formula(each) for each in forwards]
        signatures = [_signature(each) for each in forwards]
    except _NoChainError:
        return None
    if any(each != formulas[0] for each in formulas):
        return None
    return Workload(
        op="pointwise",
        header=code[0],
        constructor=code[1],
        dtype=problem.dtype,
        signatures=tuple(dict.fromkeys(signatures)),
        formula=formulas[0],
        inputs=tuple(f"x{place}" for place in range(len(forwards[0].inputs))),
    )


def _signature(forward: Forward) -> Signature:
    """Of floating tensors of one type, and truth values. Raises _NoChainError."""
    import torch

    types = {each.dtype for each in (*forward.inputs, forward.output)} - {torch.bool}
    if len(types) != 1 or not forward.output.is_floating_point():
        raise _NoChainError
    name = str(types.pop()).removeprefix("torch.")
    tensors = tuple(str(each.dtype).removeprefix("torch.") for each in forward.inputs)
    compute = "float64" if name == "float64" else "float32"
    return Signature(tensors=tensors, deciding=(), outputs=(name,), compute=compute)


def _formula(forward: Forward) -> Formula:
    """Each call is a step. Raises _NoChainError."""
    if not 1 <= len(forward.inputs) <= len(OPERANDS):
        raise _NoChainError
    names = dict(zip(map(id, forward.inputs), OPERANDS, strict=False))
    steps: dict[str, str] = {}
    for made in forward.calls:
        if made.operator in SAME and _floats(made.result) and _floats(made.arguments[0]):
            names[id(made.result)] = _name_of(made.arguments[0], names, steps)
            continue
        text = _text(made, names, steps)
        steps[f"t{len(steps)}"] = text
        names[id(made.result)] = f"t{len(steps) - 1}"
    used = set(re.findall(r"\b[a-f]\b", " ".join(steps.values())))
    last = names.get(id(forward.output))
    if last not in steps or used != set(OPERANDS[: len(forward.inputs)]):
        raise _NoChainError
    return Formula(text=last, steps=steps)


def _floats(value: Any) -> bool:
    return bool(value.is_floating_point())


def _text(made: Made, names: dict[int, str], steps: dict[str, str]) -> str:
    """What a call computes, over names of before. Raises _NoChainError."""
    formula = formula_of(made.operator)
    if formula is None or in_place(made.operator):
        raise _NoChainError
    schema, given = operator_of(made.operator)._schema.arguments, made.given()
    tensors = [given[each.name] for each in schema if takes_tensors(each)]
    words = {name: _name_of(each, names, steps) for name, each in zip(OPERANDS, tensors, strict=False)}
    own = SimpleNamespace(**{f"{each.name}_": given[each.name] for each in schema})
    for name, expression in formula.scalars.items():
        try:
            value = float(eval(expression, {"self": own}))  # an expression of the playbook's own
        except (NameError, TypeError, ValueError) as error:
            raise _NoChainError from error
        words[name] = _number(value, steps)
    power = POWERS.get(steps.get(words.get("s0", ""), "")) if "pow" in made.operator else None
    return re.sub(r"\b([a-f]|s\d)\b(?!\()", lambda found: words[found[0]], power or formula.text)


def _name_of(value: Any, names: dict[int, str], steps: dict[str, str]) -> str:
    """Of a tensor, or of a number in the place of one. Raises _NoChainError."""
    if isinstance(value, bool | int | float):
        return _number(float(value), steps)
    if id(value) not in names:
        raise _NoChainError
    return names[id(value)]


def _number(value: float, steps: dict[str, str]) -> str:
    """The step that is this number. Raises _NoChainError for one that languages write differently."""
    if not math.isfinite(value):
        raise _NoChainError
    known = next((name for name, text in steps.items() if text == repr(value)), None)
    name = known or f"t{len(steps)}"
    steps[name] = repr(value)
    return name
