"""A definition as a problem: a reference in our format, whose cases are the definition's workloads."""

from __future__ import annotations

import ast
import importlib.util
import json
import keyword
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evaluators.records.problem import Case, Problem, Size
from evaluators.reference.loading import BadReference, make_problem
from evaluators.suites.definitions.files import Definition, definition_of, stored_tensors
from evaluators.suites.workloads import CHECKED, TIMED, chosen

FLOATS = ("float64", "float32", "float16", "bfloat16")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
INTEGERS = {"int64": 1024, "int32": 1024, "int16": 1024, "int8": 128}
"""By type, the numbers below which random integers lie, in either direction."""
STORED = "stored"
"""The module global of a reference that says which workload's stored tensors are the inputs."""
NOT_AXES = ("torch", "nn", "os", "Path", "safe_open", "run", "Model", "TENSORS", "tensor", STORED)
"""Names that the reference needs itself."""
READER = '''\
def tensor(name):
    """A stored input of the workload."""
    variable, path, key = TENSORS[stored][name]
    with safe_open(Path(os.environ[variable]).expanduser() / path, "pt") as file:
        return file.get_tensor(key)'''


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What a workload says of a call: the `sizes` (its axes and scalars, and which tensors are stored), its
    `weight` in the speedup, and the stored tensors: by input, the environment variable with the folder, the
    file in it and the key in that. `row` is the workload as it stands in its file."""

    sizes: Mapping[str, Size]
    row: Mapping[str, Any]
    weight: float | None = None
    tensors: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
    custom: frozenset[str] = frozenset()


def load_definition_problem(
    name: str, *, timed_workloads: int = TIMED, checked_workloads: int = CHECKED, **rules: Any
) -> Problem:
    """The problem `<suite>/<definition>`: its cases are `timed_workloads` that are timed and
    `checked_workloads` others that are only checked. `rules` are arguments of `make_problem`. Raises
    SuiteMissing if the suite's folder is not there, and BadReference if it has no such definition or cannot
    be judged with it."""
    found = definition_of(name)
    source = source_of(
        found.read(),
        found.read_workloads(),
        timed_workloads=timed_workloads,
        checked_workloads=checked_workloads,
    )
    return make_problem(source, where=name, name=name, **rules)


def source_of(
    definition: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    *,
    timed_workloads: int,
    checked_workloads: int,
) -> str:
    """The reference, in our format, of a definition with these workloads. Raises BadReference."""
    name = definition.get("name", "")
    try:
        inputs, reference = definition["inputs"], definition["reference"].strip()
        values = values_of_axes(definition)
        workloads = read_workloads(definition, rows)
        _require_names([*values, *inputs])
        timed, checked, reserved = chosen(
            _different(workloads),
            timed_workloads=timed_workloads,
            checked_workloads=checked_workloads,
            size=_size,
            weight=lambda each: each.weight,
        )
        first = next(iter([*timed, *checked, *reserved])).sizes
        constants = {**constants_of(definition), **first}
        made = definition.get("custom_inputs_entrypoint")
        custom = {each for one in workloads for each in one.custom} if made else set()
        tensors = {one.sizes[STORED]: dict(one.tensors) for one in workloads if one.tensors}
        drawn = {
            each: f'made["{each}"]' if each in custom else _draw(each, spec, values)
            for each, spec in inputs.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise BadReference(f"the definition {name} is incomplete: {type(error).__name__}: {error}") from error
    for each in {each for one in tensors.values() for each in one}:
        drawn[each] = f'tensor("{each}") if "{each}" in TENSORS.get({STORED}, ()) else {drawn[each]}'
    arguments = ", ".join(inputs)
    imports = ["import torch", "from torch import nn"]
    if tensors:
        imports = ["import os", "from pathlib import Path", "", "from safetensors import safe_open", *imports]
    cases: list[dict[str, Any]] = [
        *({"sizes": dict(each.sizes)} | _weight(each) for each in timed),
        *({"sizes": dict(each.sizes), "weight": 0} for each in checked),
    ]
    calls = f"    made = {made}({_named(values, first)}, torch.empty(0).device)\n" if custom else ""
    parts = [
        reference,
        "\n".join(["# Made from a definition and its workloads.", *imports]),
        "\n".join(
            [
                "KEEPS_TYPES = True",
                f"DEFINITION = {name!r}",
                *(f"{each} = {value!r}" for each, value in constants.items()),
            ]
        ),
        *([f"TENSORS = {{\n{_entries(tensors)}\n}}", READER] if tensors else []),
        f"class Model(nn.Module):\n    def forward(self, {arguments}):\n        return run({arguments})",
        f"def get_inputs():\n{calls}    return [\n{_lines(drawn.values(), as_they_are=True)}\n    ]",
        "def get_init_inputs():\n    return []",
    ]
    if len(cases) > 1:
        parts.append(f"def get_cases():\n    return [\n{_lines(cases)}\n    ]")
        if reserved:
            choices = _lines(dict(each.sizes) for each in reserved)
            parts.append(f"def get_held_out(generator):\n    return generator.choice([\n{choices}\n    ])")
    return "\n\n\n".join(parts) + "\n"


def constants_of(definition: Mapping[str, Any]) -> dict[str, int]:
    """The axes that have the same value in all workloads."""
    axes = definition["axes"].items()
    return {axis: int(spec["value"]) for axis, spec in axes if spec["type"] == "const"}


def values_of_axes(definition: Mapping[str, Any]) -> dict[str, str]:
    """Each axis as Python: its name, or an expression of others. Raises BadReference."""
    return {axis: _value(axis, spec) for axis, spec in definition["axes"].items()}


def _value(axis: str, spec: Mapping[str, Any]) -> str:
    """An axis as Python: its name, if the workloads or the definition give it a value, or an expression of
    others. Raises BadReference."""
    match spec["type"]:
        case "const" | "var":
            return axis
        case "expr":
            return _expression(spec["expression"])
    raise BadReference(f"the axis {axis} is of the type {spec['type']}, which is unknown")


def _expression(text: str) -> str:
    """Arithmetic on the names of axes. Raises BadReference for anything else."""
    allowed = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Name, ast.Load)
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise BadReference(f"the expression of an axis is not Python: {text}") from error
    for node in ast.walk(tree):
        if not (
            isinstance(node, allowed) or (isinstance(node, ast.Constant) and isinstance(node.value, int))
        ):
            raise BadReference(f"the expression of an axis is more than arithmetic: {text}")
    return ast.unparse(tree)


def read_workloads(definition: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Workload]:
    """The workloads whose tensors are there. Raises BadReference if none is left, or a weight is wrong."""
    name, found, missing = definition.get("name", ""), list[Workload](), list[str]()
    mixed = any("safetensors" in _kinds(definition, row).values() for row in rows)
    for row in rows:
        given, kinds = row.get("inputs") or {}, _kinds(definition, row)
        stored = [each for each, kind in kinds.items() if kind == "safetensors"]
        places = {each: stored_tensors(given[each]["path"]) for each in stored}
        if absent := next((given[each]["path"] for each in stored if places[each] is None), None):
            missing.append(absent)
            continue
        tensors = {each: (*place, given[each]["tensor_key"]) for each, place in places.items() if place}
        scalars = {each: given[each]["value"] for each, kind in kinds.items() if kind == "scalar"}
        sizes = {**row["axes"], **scalars}
        if mixed:
            sizes[STORED] = str(row.get("uuid", len(found))) if tensors else ""
        custom = frozenset(each for each, kind in kinds.items() if kind == "custom")
        weight = row.get("weight")
        if weight is not None and not (isinstance(weight, int | float) and 0 < weight < math.inf):
            raise BadReference(
                f"a workload of the definition {name} has the weight {weight!r}; it must be a positive number"
            )
        found.append(Workload(sizes=sizes, row=row, weight=weight, tensors=tensors, custom=custom))
    if not found:
        why = f"the file {missing[0]} of its workloads' tensors is not there" if missing else "no workloads"
        raise BadReference(f"the definition {name} cannot be judged: {why}")
    if any(each.tensors for each in found) and importlib.util.find_spec("safetensors") is None:
        raise BadReference(
            f"the definition {name} has workloads with stored tensors, which need safetensors: "
            "pip install -e '.[definitions]' in Ideatree's clone"
        )
    return found


def rows_by_case(definition: Definition, problem: Problem) -> dict[str, Mapping[str, Any]]:
    """The workloads as they stand in their file, by the name of the problem's case that each is; "" for the
    one that a problem without cases has. Raises BadReference."""
    workloads = read_workloads(definition.read(), definition.read_workloads())
    if problem.cases:
        return {Case(sizes=each.sizes).name: each.row for each in reversed(workloads)}
    own = {**globals_of(problem.source), **problem.overrides}
    rows = [each.row for each in workloads if own.items() >= each.sizes.items()]
    return {"": rows[0]} if rows else {}


def globals_of(source: str) -> dict[str, Any]:
    """The module globals of a reference that are made from a definition, as far as they are literals."""
    found = {}
    for each in ast.parse(source).body:
        match each:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=value)):
                found[name] = value
    return found


def _kinds(definition: Mapping[str, Any], row: Mapping[str, Any]) -> dict[str, str]:
    """How a workload says that each input comes about."""
    given = row.get("inputs") or {}
    return {each: given.get(each, {}).get("type", "random") for each in definition["inputs"]}


def _require_names(names: Iterable[str]) -> None:
    for each in names:
        if not each.isidentifier() or keyword.iskeyword(each) or each in NOT_AXES:
            raise BadReference(
                f"the definition has an axis or an input named {each!r}, which cannot be a name"
            )


def _different(workloads: Sequence[Workload]) -> list[Workload]:
    """The workloads without repeated sizes."""
    return list({json.dumps(each.sizes, sort_keys=True): each for each in workloads}.values())


def _size(workload: Workload) -> float:
    """The product of the axes and scalars."""
    numbers = (each for each in workload.sizes.values() if isinstance(each, int | float) and each is not True)
    return math.prod(each for each in numbers if each)


def _weight(workload: Workload) -> dict[str, float]:
    return {} if workload.weight is None else {"weight": workload.weight}


def _draw(name: str, spec: Mapping[str, Any], axes: Mapping[str, str]) -> str:
    """The expression that draws an input. Raises BadReference for a type that PyTorch cannot draw."""
    dtype, shape = spec["dtype"], spec["shape"]
    if shape is None:
        return name
    size = f"({', '.join(axes[each] for each in shape)}{',' if len(shape) == 1 else ''})"
    if dtype in FLOATS:
        return f"torch.randn({size}, dtype=torch.{dtype})"
    if dtype in FLOAT8:
        return f"torch.randn({size}).clamp(-2, 2).to(torch.{dtype})"
    if dtype == "bool":
        return f"torch.rand({size}) < 0.5"
    if dtype in INTEGERS:
        return f"torch.randint({-INTEGERS[dtype]}, {INTEGERS[dtype]}, {size}, dtype=torch.{dtype})"
    raise BadReference(f"the input {name} is of type {dtype}, which is not supported")


def _named(values: Mapping[str, str], first: Mapping[str, Size]) -> str:
    """The argument of a definition's own function: axes and scalars by name."""
    named = {**values, **{each: each for each in first if each != STORED}}
    return "{" + ", ".join(f'"{name}": {value}' for name, value in named.items()) + "}"


def _entries(tensors: Mapping[Any, Mapping[str, tuple[str, str, str]]]) -> str:
    return "\n".join(f"    {name!r}: {each!r}," for name, each in tensors.items())


def _lines(values: Iterable[Any], *, as_they_are: bool = False) -> str:
    """A line of a list for each value."""
    return "\n".join(f"        {each if as_they_are else repr(each)}," for each in values)
