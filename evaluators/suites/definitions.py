"""Problems in the formats of FlashInfer Trace and SOL-ExecBench: a definition (axes, inputs, outputs, a
reference `run`) and its workloads, which give values to the axes.

    $FIB_DATASET_PATH/definitions/<group>/<name>.json    problem=flashinfer/<name>
    $FIB_DATASET_PATH/workloads/<group>/<name>.jsonl
    $SOL_EXECBENCH_ROOT/<group>/<name>/definition.json   problem=solexec/<name>
    $SOL_EXECBENCH_ROOT/<group>/<name>/workload.jsonl

A definition becomes a reference in our format, whose cases are its workloads. Facts on the formats are in
`docs/guides/definitions.md`.
"""

from __future__ import annotations

import ast
import json
import keyword
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.records.problem import Problem
from evaluators.reference.loading import BadReference, make_problem
from evaluators.suites.suite import SuiteEntry, SuiteMissing

ROOTS = {"flashinfer": "FIB_DATASET_PATH", "solexec": "SOL_EXECBENCH_ROOT"}
"""By suite, the environment variable with its folder."""
TIMED, CHECKED, RESERVED = 4, 8, 4
"""How many workloads of a definition are timed, are only checked, and are kept for held-out cases."""
FLOATS = ("float64", "float32", "float16", "bfloat16")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
INTEGERS = {"int64": 1024, "int32": 1024, "int16": 1024, "int8": 128}
"""By type, the numbers below which random integers lie, in either direction."""


@dataclass(frozen=True, kw_only=True)
class Definition:
    """A definition's files: `group` is its kind of operator, or the part of the benchmark it belongs to."""

    suite: str
    group: str
    name: str
    file: Path
    workloads: Path

    @property
    def problem(self) -> str:
        """The value of `problem=…` that selects it."""
        return f"{self.suite}/{self.name}"

    def read(self) -> Mapping[str, Any]:
        """The definition. Raises BadReference."""
        (definition,) = self._values([self._text(self.file)])
        return definition

    def read_workloads(self) -> list[Mapping[str, Any]]:
        """Its workloads. Raises BadReference."""
        rows = self._values(line for line in self._text(self.workloads).splitlines() if line.strip())
        return [row.get("workload") or row for row in rows]

    def _text(self, file: Path) -> str:
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise BadReference(f"{self.problem} cannot be read: {first_line(error)}") from error

    def _values(self, texts: Iterable[str]) -> list[Mapping[str, Any]]:
        try:
            return [json.loads(text) for text in texts]
        except ValueError as error:
            raise BadReference(f"{self.problem} cannot be read: {first_line(error)}") from error


class Definitions:
    """A suite of definitions: all of `flashinfer` or `solexec`, or those of one `group`."""

    def __init__(self, name: str, group: str = "") -> None:
        """Raises ValueError for a name of another suite."""
        self.name, self._group = name, group
        self._suite = name.partition("/")[0]
        if self._suite not in ROOTS:
            raise ValueError(f"the suite {name} has no definitions; known: {', '.join(ROOTS)}")

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        found = [each for each in definitions(self._suite) if self._group in ("", each.group)]
        if not found:
            groups = sorted({each.group for each in definitions(self._suite)})
            raise SuiteMissing(
                f"{self._suite} has no definitions of {self._group}; it has {', '.join(groups)}"
            )
        return [SuiteEntry(problem=each.problem) for each in found]


def load_definition_problem(
    name: str, *, timed_workloads: int = TIMED, checked_workloads: int = CHECKED, **rules: Any
) -> Problem:
    """The problem `<suite>/<definition>`: its cases are `timed_workloads` that are timed and
    `checked_workloads` others that are only checked. `rules` are arguments of `make_problem`. Raises
    SuiteMissing if the suite's folder is not there, and BadReference if it has no such definition or cannot
    be judged with it."""
    suite, _, wanted = name.partition("/")
    known = {each.name: each for each in definitions(suite)}
    if wanted not in known:
        raise BadReference(f"{suite} has no definition {wanted}{near(wanted, list(known))}")
    found = known[wanted]
    source = source_of(
        found.read(),
        found.read_workloads(),
        timed_workloads=timed_workloads,
        checked_workloads=checked_workloads,
    )
    return make_problem(source, where=name, name=name, **rules)


def definitions(suite: str) -> Sequence[Definition]:
    """All definitions of a suite, by name. Raises SuiteMissing."""
    variable = ROOTS[suite]
    if not (folder := os.environ.get(variable, "")):
        raise SuiteMissing(f"{suite} is not available: set {variable} to the folder of its data set")
    root = Path(folder).expanduser()
    if suite == "flashinfer":
        found = [
            Definition(
                suite=suite,
                group=file.parent.name,
                name=file.stem,
                file=file,
                workloads=root / "workloads" / file.relative_to(root / "definitions").with_suffix(".jsonl"),
            )
            for file in root.glob("definitions/**/*.json")
        ]
    else:
        found = [
            Definition(
                suite=suite,
                group=file.parent.parent.name,
                name=file.parent.name,
                file=file,
                workloads=file.with_name("workload.jsonl"),
            )
            for file in root.glob("**/definition.json")
        ]
    if not found:
        raise SuiteMissing(f"{variable}={folder} has no definitions of {suite}")
    return sorted(found, key=lambda each: each.name)


def source_of(
    definition: Mapping[str, Any],
    workloads: Sequence[Mapping[str, Any]],
    *,
    timed_workloads: int,
    checked_workloads: int,
) -> str:
    """The reference, in our format, of a definition with these workloads. Raises BadReference."""
    name = definition.get("name", "")
    try:
        axes, inputs = definition["axes"], definition["inputs"]
        reference = definition["reference"].strip()
        values = values_of_axes(definition)
        sizes, custom = _sizes(name, inputs, workloads)
        _require_names([*values, *inputs])
        timed, checked, reserved = _chosen(sizes, timed_workloads, checked_workloads)
        first = next(iter([*timed, *checked, *reserved]))
        fixed = {axis: int(spec["value"]) for axis, spec in axes.items() if spec["type"] == "const"}
        lines = [f"{each} = {value}" for each, value in {**fixed, **first}.items()]
        arguments = ", ".join(inputs)
        made = definition.get("custom_inputs_entrypoint") if custom else None
        drawn = [
            f'        made["{each}"],' if made and each in custom else f"        {_draw(each, spec, values)},"
            for each, spec in inputs.items()
        ]
    except (KeyError, TypeError, AttributeError) as error:
        raise BadReference(f"the definition {name} is incomplete: {type(error).__name__}: {error}") from error
    cases: list[dict[str, Any]] = [
        *({"sizes": each} for each in timed),
        *({"sizes": each, "weight": 0} for each in checked),
    ]
    parts = [
        reference,
        f"# Made from the definition {name} and its workloads.\nimport torch\nfrom torch import nn",
        "KEEPS_TYPES = True\n" + "\n".join(lines),
        f"class Model(nn.Module):\n    def forward(self, {arguments}):\n        return run({arguments})",
        "def get_inputs():\n"
        + (_made(made, {**values, **{each: each for each in first}}) if made else "")
        + "    return [\n"
        + "\n".join(drawn)
        + "\n    ]",
        "def get_init_inputs():\n    return []",
    ]
    if len(cases) > 1:
        parts.append(f"def get_cases():\n    return [\n{_lines(cases)}\n    ]")
        if reserved:
            choices = _lines(reserved)
            parts.append(f"def get_held_out(generator):\n    return generator.choice([\n{choices}\n    ])")
    return "\n\n\n".join(parts) + "\n"


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


def _sizes(
    name: str, inputs: Mapping[str, Any], workloads: Sequence[Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], set[str]]:
    """Each workload's axes and scalars, and the inputs that the definition's own function makes. Workloads
    that read tensors from files are left out. Raises BadReference if none is left."""
    sizes, custom, unread = [], set[str](), 0
    for workload in workloads:
        given = workload.get("inputs") or {}
        kinds = {each: given.get(each, {}).get("type", "random") for each in inputs}
        if "safetensors" in kinds.values():
            unread += 1
            continue
        custom |= {each for each, kind in kinds.items() if kind == "custom"}
        scalars = {each: given[each]["value"] for each, kind in kinds.items() if kind == "scalar"}
        sizes.append({**workload["axes"], **scalars})
    if not sizes:
        why = f"all {unread} workloads read tensors from files" if unread else "it has no workloads"
        raise BadReference(f"the definition {name} cannot be judged: {why}")
    return sizes, custom


def _require_names(names: Iterable[str]) -> None:
    for each in names:
        if not each.isidentifier() or keyword.iskeyword(each) or each in ("torch", "nn", "run", "Model"):
            raise BadReference(
                f"the definition has an axis or an input named {each!r}, which cannot be a name"
            )


def _chosen(
    sizes: Sequence[dict[str, Any]], timed_workloads: int, checked_workloads: int
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[dict[str, Any]]]:
    """The workloads that are timed, spread from the largest, whose sizes are those of the file itself, to the
    smallest; those that are only checked; and those that are kept for held-out cases."""
    different = list({json.dumps(each, sort_keys=True): each for each in sizes}.values())
    ordered = sorted(different, key=lambda each: math.prod(v for v in each.values() if v and v is not True))
    timed = _spread(ordered, timed_workloads)
    rest = [each for each in ordered if each not in timed]
    checked = _spread(rest, checked_workloads)
    reserved = _spread([each for each in rest if each not in checked], RESERVED)
    return timed[::-1], checked, reserved


def _spread(values: Sequence[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """At most `count` of the values at equal distances, with the first and the last."""
    if len(values) <= count:
        return list(values)
    if count < 2:
        return list(values[len(values) - count :])
    return [values[round(number * (len(values) - 1) / (count - 1))] for number in range(count)]


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


def _made(function: str, values: Mapping[str, str]) -> str:
    named = ", ".join(f'"{name}": {value}' for name, value in values.items())
    return f"    made = {function}({{{named}}}, torch.empty(0).device)\n"


def _lines(values: Iterable[Mapping[str, Any]]) -> str:
    """A line of a list for each value."""
    return "\n".join(f"        {each!r}," for each in values)
