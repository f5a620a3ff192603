"""Problems of operators from calls in the grammar of traces, and their kernels against PyTorch."""

import importlib.util
import random
import types
from pathlib import Path
from typing import Any

import torch

from evaluators.records.problem import Case, Problem
from evaluators.suites.operators import reference_of
from evaluators.suites.traced.grammar import call_of
from evaluators.suites.traced.inputs import make_arguments, operator_of, takes_tensors
from search.proposers.playbook.move import Knob, Template
from search.proposers.playbook.operator_problem import operator_workload
from search.proposers.playbook.workload import Workload

CALLS: dict[str, list[str]] = {
    "aten.add.Tensor": [
        "((T([5, 7, 3], f32), T([7, 1], f32),), {'alpha': 0.5})",
        "((T([4, 33], f16, [1, 4]), T([33], f16),), {})",
        "((T([2, 3], i64), T([], f32),), {})",
        "((T([4100], bf16), T([4100], bf16),), {})",
    ],
    "aten.add.Scalar": ["((T([3, 5], f32), 2.5,), {})", "((T([3, 5], i64), 2,), {})"],
    "aten.exp.default": ["((T([31, 7], f32),), {})", "((T([20], i64),), {})", "((T([], f16),), {})"],
    "aten.relu_.default": ["((T([5, 6], f32, [1, 5]),), {})"],
    "aten.lt.Tensor": ["((T([9], i64), T([4, 1], i64),), {})", "((T([9], bf16), T([9], bf16),), {})"],
    "aten.clamp.default": ["((T([19], f32), -0.5,), {})", "((T([19], i64), None, 3,), {})"],
    "aten.clamp.Tensor": ["((T([4, 5], f32), None, T([5], f32),), {})"],
    "aten.where.self": ["((T([3, 1], b8), T([5], f32), T([3, 5], f32),), {})"],
    "aten.sum.dim_IntList": [
        "((T([5, 70, 3], f32), [1], True,), {})",
        "((T([6, 9], f16, [1, 6]), [0, -1],), {})",
        "((T([4, 5], i64), [-1],), {})",
        "((T([4, 5], f32), [0],), {'dtype': torch.float64})",
    ],
    "aten.amax.default": ["((T([3, 40], f32), [0],), {})", "((T([], i64), [0],), {})"],
    "aten.any.dim": ["((T([3, 40], f32), 1,), {})"],
    "aten.var.correction": ["((T([3, 37, 4], f32), [1, 2],), {'correction': 0, 'keepdim': True})"],
    "aten.logsumexp.default": ["((T([3, 37], f32), [1],), {})", "((T([4], bf16), [0], True,), {})"],
    "aten._softmax.default": ["((T([3, 37, 2], f32), 1, False,), {})", "((T([5], f16), 0, False,), {})"],
    "aten._log_softmax.default": ["((T([3, 37], f32, [1, 3]), -1, False,), {})"],
    "aten.native_layer_norm.default": [
        "((T([3, 5, 7], f32), [5, 7], T([5, 7], f32), T([5, 7], f32), 1e-05,), {})",
        "((T([3, 67], bf16), [67], None, T([67], bf16), 0.5,), {})",
        "((T([2, 3], f32), [3], None, None, 0.5,), {})",
    ],
    "aten.mm.default": ["((T([5, 37], f32, [1, 5]), T([37, 19], f32),), {})"],
    "aten.bmm.default": ["((T([3, 5, 33], f16), T([3, 33, 7], f16, [231, 1, 33]),), {})"],
    "aten.addmm.default": ["((T([4], f32), T([3, 5], f32), T([5, 4], f32),), {'beta': 0.5, 'alpha': 2})"],
    "aten.mv.default": ["((T([5, 37], f32), T([37], f32),), {})"],
}
"""Some operators of each family, with odd shapes, strides and types."""
ERRORS = {torch.float16: 2e-3, torch.bfloat16: 2e-2}


def problem(operator: str, calls: list[str], device: str = "cpu") -> Problem:
    source = reference_of(operator, call_of(operator, calls[0]), len(calls))
    return Problem(
        name=operator,
        source=source,
        cases=tuple(Case(sizes={"call": each}) for each in calls),
        device=device,
    )


def workload(operator: str, calls: list[str], device: str = "cpu") -> Workload:
    found = operator_workload(problem(operator, calls, device))
    assert found is not None
    return found


def walked(template: Template, of: Workload, seed: int, steps: int = 8) -> dict[str, Knob]:
    """The knobs after random moves from the naive kernel."""
    rng = random.Random(seed)
    knobs = dict(template.naive)
    for _ in range(steps):
        move = rng.choice([each for each in template.moves if each.fits(of, knobs)])
        after = {**knobs, **move.sets, **{knob: rng.choice(values) for knob, values in move.varies.items()}}
        knobs = after if template.valid(of, after) else knobs
    return knobs


def imported(source: str, folder: Path) -> types.ModuleType:
    path = folder / f"kernel_{abs(hash(source))}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrong(module: Any, operator: str, text: str) -> str:
    """What a kernel does wrong on a call, "" where nothing; "declined" where it is not for it."""
    sides = [make_arguments(call_of(operator, text), "cpu", 7) for _ in range(2)]
    schema = operator_of(operator)._schema.arguments
    positional, named = sides[0]
    given = {**dict(zip((each.name for each in schema), positional, strict=False)), **named}
    values = [(takes_tensors(each), given.get(each.name, each.default_value)) for each in schema]
    tensors = [value for takes, value in values if takes]
    if not module.supports(*tensors):
        return "declined"
    made = module.ModelNew(*(value for takes, value in values if not takes))(*tensors)
    expected = operator_of(operator)(*sides[1][0], **sides[1][1])
    pairs = zip(_several(made), _several(expected), strict=True)
    return "; ".join(filter(None, (_difference(one, other) for one, other in pairs)))


def wrong_calls(module: Any, operator: str, calls: list[str]) -> list[str]:
    return [f"{operator} {call}: {why}" for call in calls if (why := wrong(module, operator, call))]


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _difference(made: torch.Tensor, expected: torch.Tensor) -> str:
    if (made.shape, made.dtype) != (expected.shape, expected.dtype):
        return f"{made.dtype} {tuple(made.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    error = ERRORS.get(made.dtype, 1e-5)
    alike = torch.allclose(made.double(), expected.double(), rtol=error, atol=error, equal_nan=True)
    return "" if alike else f"off by {(made.double() - expected.double()).abs().max():.2e}"
