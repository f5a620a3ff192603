"""Kernels in the format of FlashInfer Trace and SOL-ExecBench: a solution is a JSON file with sources, an
entry point, and the name of the definition that it solves (see `definitions`)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evaluators.base.cause import first_line
from evaluators.suites.definitions import ROOTS, definitions, values_of_axes
from evaluators.suites.suite import SuiteMissing

LANGUAGES = ("python", "pytorch", "triton", "gluon", "cute_dsl")
"""Those whose solutions are Python."""


class BadSolution(ValueError):
    """A solution that cannot be read; the message says why, in one line."""


def solution_source(path: Path) -> str:
    """The solution in a file as the source of a kernel of ours, a `ModelNew` that calls its entry point.
    Raises BadSolution and OSError."""
    try:
        solution = json.loads(path.read_text(encoding="utf-8"))
        spec, sources = solution["spec"], solution["sources"]
        stated = spec.get("languages") or [spec["language"]]
        file, _, function = spec["entry_point"].partition("::")
        definition = _definition(solution["definition"])
        if foreign := [each for each in stated if each.lower() not in LANGUAGES]:
            raise BadSolution(f"it is in {foreign[0]}; only solutions in one Python file can be judged")
        if [each["path"] for each in sources] != [file]:
            raise BadSolution(f"it has {len(sources)} files; only solutions in one Python file can be judged")
        # Outputs are arguments unless the solution says that they are returned, as in both formats.
        calls = _call(function, definition, fills=spec.get("destination_passing_style", True))
        code = sources[0]["content"].rstrip()
    except (KeyError, TypeError, AttributeError, StopIteration, json.JSONDecodeError) as error:
        raise BadSolution(f"it is no solution: {type(error).__name__}: {first_line(error)}") from error
    title = f"# The solution {solution.get('name', path.stem)} of {definition['name']}."
    model = f"class ModelNew(nn.Module):\n    def forward(self, {', '.join(definition['inputs'])}):\n{calls}"
    return f"{code}\n\n\n{title}\nimport torch\nfrom torch import nn\n\n\n{model}\n"


def _definition(name: str) -> Mapping[str, Any]:
    """The definition with this name, of whichever suite. Raises BadSolution."""
    for suite in ROOTS:
        try:
            known = definitions(suite)
        except SuiteMissing:
            continue
        # A definition's own name may differ from that of its file.
        for each in sorted(known, key=lambda one: one.name != name):
            definition = each.read()
            if name in (each.name, definition.get("name")):
                return definition
    raise BadSolution(f"its definition {name} was not found; set {' or '.join(ROOTS.values())}")


def _call(function: str, definition: Mapping[str, Any], *, fills: bool) -> str:
    """The body of `forward`. `fills`: whether the function fills outputs that it is given."""
    inputs, outputs = definition["inputs"], definition["outputs"]
    if not fills:
        return f"        return {function}({', '.join(inputs)})"
    axes, lines = values_of_axes(definition), []
    for axis, spec in definition["axes"].items():
        if spec["type"] == "const":
            lines.append(f"        {axis} = {int(spec['value'])}")
        elif spec["type"] == "var":
            name = next(name for name, each in inputs.items() if axis in (each["shape"] or ()))
            lines.append(f"        {axis} = {name}.shape[{inputs[name]['shape'].index(axis)}]")
    where = next(name for name, spec in inputs.items() if spec["shape"])
    for name, spec in outputs.items():
        size = ", ".join(axes[each] for each in spec["shape"])
        lines.append(
            f"        {name} = torch.empty([{size}], dtype=torch.{spec['dtype']}, device={where}.device)"
        )
    lines.append(f"        {function}({', '.join([*inputs, *outputs])})")
    return "\n".join([*lines, f"        return {', '.join(outputs)}"])
