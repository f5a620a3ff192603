"""Reads a problem that is one of PyTorch's operators (`evaluators/suites/operators.py`): its family of
templates and the types of its calls."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evaluators.records.problem import Problem
from evaluators.reference.containers import map_tensors
from evaluators.suites.traced.call import Tensor, TracedCall, Value
from evaluators.suites.traced.grammar import call_of
from evaluators.suites.traced.inputs import make_arguments, operator_of, takes_tensors
from search.proposers.playbook.constructor import constructor_of
from search.proposers.playbook.formulas import Formula, formula_of
from search.proposers.playbook.passes import NORMALISATIONS, REDUCTIONS, Rows, operator_rows
from search.proposers.playbook.workload import Signature, Workload

if TYPE_CHECKING:
    import torch

PRODUCTS = tuple(f"aten.{name}.default" for name in ("mm", "bmm", "addmm", "baddbmm", "mv"))
DECIDING = ("dtype", "half_to_float", "rounding_mode")
"""Constants that the type of the output depends on, in addition to the types of the tensors."""


def operator_workload(problem: Problem) -> Workload | None:
    """The workload of an operator problem; None for any other problem, and for an operator without a family
    or with calls that its family does not support."""
    found = _assigned(problem.source)
    if "OPERATOR" not in found or "call" not in found:
        return None
    operator = found["OPERATOR"]
    family = family_of(operator)
    code = constructor_of(problem)
    texts = [str(each.sizes.get("call", found["call"])) for each in problem.cases]
    texts = texts or [str(problem.overrides.get("call", found["call"]))]
    calls = [call_of(operator, each) for each in texts]
    if family is None or code is None or not all(map(has_no_lists, calls)):
        return None
    signatures = [each for call in calls if (each := signature_of(call, problem.device)) is not None]
    if not signatures:
        return None
    return Workload(
        op=family,
        header=code[0],
        constructor=code[1],
        dtype=problem.dtype,
        operator=operator,
        signatures=tuple(dict.fromkeys(signatures)),
        rows=rows_of_operator(operator),
    )


def family_of(operator: str) -> str | None:
    """The family of templates for an operator; None if there is none."""
    if formula_of(operator) is not None:
        return "pointwise"
    if operator in REDUCTIONS or operator in NORMALISATIONS:
        return "rows"
    return "product" if operator in PRODUCTS else None


def rows_of_operator(operator: str) -> Rows | None:
    """The passes of a reduction or a normalisation; None for any other operator."""
    names = {each.name for each in operator_of(operator)._schema.arguments}
    return operator_rows(operator, keepdim="keepdim" in names, dim="dim" in names)


def tensor_names(operator: str) -> tuple[str, ...]:
    """The arguments of a reference's `forward`."""
    arguments = operator_of(operator)._schema.arguments
    names = [each.name for each in arguments if takes_tensors(each)]
    return tuple("input" if name == "self" else name for name in names)


def names_of(workload: Workload) -> tuple[str, ...]:
    """The arguments of a kernel's `forward`."""
    return workload.inputs or tensor_names(workload.operator)


def formula_for(workload: Workload) -> Formula:
    """The formula of an element-wise operator or chain. Raises ValueError for any other workload."""
    formula = workload.formula or formula_of(workload.operator)
    if formula is None:
        raise ValueError(f"{workload.operator or workload.op} is not element-wise")
    return formula


def texts_of(workload: Workload) -> list[str]:
    """All formula texts of the workload."""
    return formula_for(workload).texts if workload.rows is None else workload.rows.texts


def deciding_names(operator: str) -> tuple[str, ...]:
    """The names in DECIDING that the operator has."""
    names = [each.name for each in operator_of(operator)._schema.arguments]
    return tuple(name for name in DECIDING if name in names)


def in_place(operator: str) -> bool:
    """Whether the operator writes to its first argument; False for a chain, which has no name."""
    return operator != "" and operator.split(".")[1].endswith("_")


def arguments_of(call: TracedCall) -> Mapping[str, Value]:
    """All arguments by name; omitted ones with their defaults."""
    arguments = operator_of(call.operator)._schema.arguments
    names = [each.name for each in arguments]
    given = {**dict(zip(names, call.arguments, strict=False)), **call.keywords}
    return {each.name: given.get(each.name, each.default_value) for each in arguments}


def _assigned(source: str) -> dict[str, str]:
    """The strings that a module assigns to names."""
    return {
        node.targets[0].id: node.value.value
        for node in ast.parse(source).body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }


def has_no_lists(call: TracedCall) -> bool:
    """Whether no argument is a list of tensors."""
    given = arguments_of(call)
    arguments = operator_of(call.operator)._schema.arguments
    values = [given[each.name] for each in arguments if takes_tensors(each)]
    return all(value is None or isinstance(value, Tensor) for value in values)


def signature_of(call: TracedCall, device: str) -> Signature | None:
    """The types of a call; None if the operator rejects its arguments or computes with complex numbers.

    Output types can differ between devices, so a call for the CPU runs on fake CPU tensors, and any other on
    the meta device."""
    import torch

    names = [each.name for each in operator_of(call.operator)._schema.arguments]
    takes = [takes_tensors(each) for each in operator_of(call.operator)._schema.arguments]
    given = arguments_of(call)
    values = [given[name] for name, tensor in zip(names, takes, strict=True) if tensor]
    tensors = tuple(each.dtype if isinstance(each, Tensor) else "" for each in values)
    arguments, keywords = make_arguments(call, "meta", 0)
    named = {**given, **dict(zip(names, arguments, strict=False)), **keywords}
    try:
        result = _result_of(call.operator, arguments, keywords, device)
    except Exception:  # an operator may raise anything
        return None
    outputs = tuple(str(each.dtype)[6:] for each in (result if isinstance(result, tuple) else (result,)))
    types = [getattr(torch, each) for each in (*tensors, *outputs) if each]
    if any(each.is_complex for each in types):
        return None
    compute = "float32" if any(each.is_floating_point for each in types) else "int64"
    return Signature(
        tensors=tensors,
        deciding=tuple(repr(named[name]) for name in deciding_names(call.operator)),
        outputs=outputs,
        compute="float64" if torch.float64 in types else compute,
    )


def _result_of(operator: str, arguments: list[Any], keywords: dict[str, Any], device: str) -> Any:
    """The operator's result for tensors like these meta tensors. Raises what the operator raises."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    if device != "cpu":
        return operator_of(operator)(*arguments, **keywords)
    with FakeTensorMode():
        given, named = map_tensors(_on_cpu, [arguments, keywords])
        return operator_of(operator)(*given, **named)


def _on_cpu(like: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="cpu")
