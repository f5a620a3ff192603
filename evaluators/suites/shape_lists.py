"""Problems of benchmarks that have a folder for each operator, with a reference and a list of shapes:

    $ATREX_BENCH_ROOT/<operator>/{reference,input}.py, {shapes,metadata}.json      problem=atrex/<operator>
    $KERNELBENCH_HARD_ROOT/<operator>/{reference,shapes}.py                        problem=kernelbench_hard/…

Atrex-Bench says how often each shape is called in production and how important each operator is: these are
the weights of cases and problems. Facts on the formats are in `docs/guides/other-sets.md`.
"""

from __future__ import annotations

import ast
import json
import math
import os
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evaluators.base.cause import first_line
from evaluators.base.nearest import near
from evaluators.base.source_file import read_source
from evaluators.records.problem import Problem, content_id
from evaluators.reference.loading import BadReference, assigned_names, make_problem
from evaluators.suites.suite import SuiteEntry, SuiteMissing
from evaluators.suites.workloads import CHECKED, TIMED, chosen

ATREX, HARD = "atrex", "kernelbench_hard"
ROOTS = {ATREX: "ATREX_BENCH_ROOT", HARD: "KERNELBENCH_HARD_ROOT"}
"""By suite, the environment variable with its folder."""
LONGEST = 6
"""The number of values of the longest list that is written out in a name."""
NEEDED = {ATREX: ("input.py", "shapes.json"), HARD: ("shapes.py",)}
"""By suite, the files that an operator's folder has in addition to `reference.py`."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One entry of a list of shapes: its arguments in words, and its share of the production's calls."""

    name: str
    init: Mapping[str, Any]
    inputs: Mapping[str, Any]
    weight: float | None = None


class ShapeLists:
    """A suite of operators with lists of shapes, `atrex` or `kernelbench_hard`."""

    def __init__(self, name: str) -> None:
        """Raises ValueError for the name of another suite."""
        if name not in ROOTS:
            raise ValueError(f"the suite {name} has no lists of shapes; known: {', '.join(ROOTS)}")
        self.name = name

    def entries(self) -> Sequence[SuiteEntry]:
        """See `Suite`."""
        return [
            SuiteEntry(problem=f"{self.name}/{folder.name}", weight=_importance(folder))
            for folder in _operators(self.name)
        ]


def load_listed_problem(
    name: str, *, timed_workloads: int = TIMED, checked_workloads: int = CHECKED, **rules: Any
) -> Problem:
    """The problem `<suite>/<operator>`. Of Atrex-Bench, `timed_workloads` shapes are timed and
    `checked_workloads` others only checked; of KernelBench-Hard, all are timed. `rules` are arguments of
    `make_problem`. Raises SuiteMissing if the suite's folder is not there, and BadReference if it has no such
    operator or its files cannot be used."""
    suite, _, wanted = name.partition("/")
    known = {folder.name: folder for folder in _operators(suite)}
    if wanted not in known:
        raise BadReference(f"{suite} has no operator {wanted}{near(wanted, list(known))}")
    try:
        if suite == HARD:
            source = _with_cases(known[wanted])
        else:
            source = _with_shapes(known[wanted], timed_workloads, checked_workloads)
    except (OSError, SyntaxError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadReference(f"{name} cannot be read: {type(error).__name__}: {first_line(error)}") from error
    return make_problem(source, where=name, name=name, **rules)


def _operators(suite: str) -> list[Path]:
    """The folders of a suite's operators, by name. Raises SuiteMissing."""
    variable = ROOTS[suite]
    if not (root := os.environ.get(variable, "")):
        raise SuiteMissing(f"{suite} is not available: set {variable} to the folder of its operators")
    folder = Path(root).expanduser()
    needed = ("reference.py", *NEEDED[suite])
    found = [each.parent for each in folder.glob("*/reference.py")]
    found = [each for each in found if all((each / name).is_file() for name in needed)]
    if not found:
        raise SuiteMissing(f"{variable}={root} has no folders with {', '.join(needed)}")
    return sorted(found)


def _importance(folder: Path) -> float:
    """An operator's share of the production's time; 1 if it is not said."""
    try:
        weight = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["importance_score"]
        return float(weight) if weight > 0 else 1.0
    except (OSError, ValueError, KeyError, TypeError):
        return 1.0


def _with_cases(folder: Path) -> str:
    """The reference with its SHAPES, which name its module globals in either case, as cases."""
    reference = read_source(folder / "reference.py").rstrip()
    names = assigned_names(reference)
    shapes = [
        {name if name in names else name.upper(): value for name, value in each.items()}
        for each in _literal(read_source(folder / "shapes.py"), "SHAPES")
    ]
    cases = "\n".join(f"        {{'sizes': {each!r}}}," for each in shapes)
    return f"{reference}\n\n\nKEEPS_TYPES = True\n\n\ndef get_cases():\n    return [\n{cases}\n    ]\n"


def _literal(source: str, name: str) -> Any:
    for each in ast.parse(source).body:
        match each:
            case ast.Assign(targets=[ast.Name(id=found)], value=value) if found == name:
                return ast.literal_eval(value)
    raise ValueError(f"shapes.py does not assign {name}")


def _with_shapes(folder: Path, timed_workloads: int, checked_workloads: int) -> str:
    """The reference with a global that names the shape, whose arguments its model and its inputs get."""
    shapes = _shapes(folder)
    timed, checked, reserved = chosen(
        shapes,
        timed_workloads=timed_workloads,
        checked_workloads=checked_workloads,
        size=lambda each: math.prod(n for n in each.inputs.values() if type(n) is int and n),
        weight=lambda each: each.weight,
    )
    used = [*timed, *checked, *reserved]
    rows = "\n".join(f"    {each.name!r}: ({dict(each.init)!r}, {dict(each.inputs)!r})," for each in used)
    cases = [f"{{'sizes': {{'shape': {each.name!r}}}{_weight(each)}}}" for each in timed]
    cases += [f"{{'sizes': {{'shape': {each.name!r}}}, 'weight': 0}}" for each in checked]
    reference = read_source(folder / "reference.py").rstrip()
    parts = [
        reference,
        _on_any_device(read_source(folder / "input.py")),
        f"# Made from an operator of Atrex-Bench: what its model and its inputs get, by shape.\n"
        f"KEEPS_TYPES = True\nSHAPES = {{\n{rows}\n}}\nshape = {used[0].name!r}",
        f"def get_inputs():\n    made = _make_inputs(**SHAPES[shape][1])\n"
        f"    return [made[name] for name in {_arguments(reference)!r} if name in made]",
        "def get_init_inputs():\n    return [[], SHAPES[shape][0]]",
    ]
    if len(cases) > 1:
        listed = textwrap.indent(",\n".join(cases), " " * 8)
        parts.append(f"def get_cases():\n    return [\n{listed},\n    ]")
    if reserved:
        names = [each.name for each in reserved]
        parts.append(f"def get_held_out(generator):\n    return {{'shape': generator.choice({names!r})}}")
    return "\n\n\n".join(parts) + "\n"


def _shapes(folder: Path) -> list[Shape]:
    """The shapes, each once, with their shares of the calls."""
    listed = json.loads((folder / "shapes.json").read_text(encoding="utf-8"))
    metadata = folder / "metadata.json"
    calls = json.loads(metadata.read_text(encoding="utf-8")).get("shapes", {}) if metadata.is_file() else {}
    counts = {number: (calls.get(number) or {}).get("call_count") or 0 for number in listed}
    total = sum(counts.values())
    found: dict[str, Shape] = {}
    for number, each in listed.items():
        init, inputs = each.get("init_kwargs") or {}, each.get("input_kwargs") or {}
        name = " ".join(f"{key}={_short(value)}" for key, value in {**init, **inputs}.items())
        share = counts[number] / total if total else 0.0
        before = found[name].weight or 0.0 if name in found else 0.0
        found[name] = Shape(name=name, init=init, inputs=inputs, weight=(before + share) or None)
    return list(found.values())


def _short(value: Any) -> str:
    """A value in a name: a long list by its length and a hash."""
    if isinstance(value, list) and len(value) > LONGEST:
        return f"{len(value)} values {content_id(repr(value))[:4]}"
    return str(value)


def _weight(shape: Shape) -> str:
    return f", 'weight': {shape.weight:.4g}" if shape.weight else ""


def _arguments(reference: str) -> list[str]:
    """The names of the arguments of the model's `forward`, in order."""
    for model in ast.parse(reference).body:
        if isinstance(model, ast.ClassDef) and model.name == "Model":
            for each in model.body:
                if isinstance(each, ast.FunctionDef) and each.name == "forward":
                    return [one.arg for one in (*each.args.args[1:], *each.args.kwonlyargs)]
    raise ValueError("reference.py has no Model with a forward")


def _on_any_device(source: str) -> str:
    """The source without the arguments `device='cuda'`: the evaluator says where inputs are drawn."""
    tree = ast.parse(source)
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            each.keywords = [one for one in each.keywords if not _names_cuda(one)]
    return ast.unparse(tree)


def _names_cuda(keyword: ast.keyword) -> bool:
    value = keyword.value
    return (
        keyword.arg == "device"
        and isinstance(value, ast.Constant)
        and str(value.value).partition(":")[0] == "cuda"
    )
