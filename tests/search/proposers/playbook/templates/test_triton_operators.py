"""The Triton templates of operators render, and give right results in Triton's interpreter."""

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from search.proposers.playbook.templates import template_for
from search.proposers.playbook.templates.scaffold import read_stamp
from tests.search.proposers.playbook.operator_calls import CALLS, walked, workload

RUNNER = """
import sys
from pathlib import Path
from tests.search.proposers.playbook.operator_calls import CALLS, imported, wrong
operator, *kernels = sys.argv[1:]
for kernel in kernels:
    module = imported(Path(kernel).read_text(), Path(kernel).parent)
    for call in CALLS[operator]:
        why = wrong(module, operator, call)
        if why not in ("", "declined"):
            print(operator, call, why)
"""

ALSO = {"pointwise": [{"flat": True}, {"flat": True, "constant": True, "merged": True}]}
"""Knobs that a walk may leave out."""


@pytest.mark.parametrize("operator", CALLS)
def test_kernels_are_python_and_say_what_they_are(operator: str) -> None:
    of = workload(operator, CALLS[operator], device="cuda")
    template = template_for(of.op, "triton")
    assert template is not None
    assert template.valid(of, template.naive)
    for seed in range(6):
        knobs = walked(template, of, seed)
        source = template.render(of, knobs)
        names = {each.name for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
        assert {"supports", "plan", {"rows": "rows_of"}.get(of.op, of.op)} <= names
        assert read_stamp(source) == (of.op, "triton", knobs)


@pytest.mark.slow
@pytest.mark.parametrize("operator", CALLS)
def test_kernels_are_right_in_the_interpreter(operator: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    of = workload(operator, CALLS[operator])
    template = template_for(of.op, "triton")
    assert template is not None
    kernels = []
    also = [{**template.naive, **each} for each in ALSO.get(of.op, ())]
    for seed, knobs in enumerate([template.naive, walked(template, of, 1), *also]):
        path = tmp_path / f"{seed}.py"
        path.write_text(template.render(of, knobs))
        kernels.append(str(path))
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, operator, *kernels],
        env=dict(os.environ, TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == ""
