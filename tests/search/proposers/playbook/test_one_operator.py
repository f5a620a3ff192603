"""Plain references that are one operator: which are, and that the operators' templates are right for them."""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluators.records.problem import Case, Problem
from evaluators.reference.loading import load_module
from search.proposers.playbook.one_operator import one_operator_workload
from search.proposers.playbook.playbook import Playbook
from search.proposers.playbook.templates import template_for
from tests.search.proposers.playbook.operator_calls import imported

pytestmark = pytest.mark.usefixtures("shared_builds")

HEAD = "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n"
PLAIN = "class Model(nn.Module):\n    def forward(self, {inputs}):\n        return {value}\n"
WITH_A_NUMBER = """
class Model(nn.Module):
    def __init__(self, slope: float):
        super(Model, self).__init__()
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.leaky_relu(x, negative_slope=self.slope)
"""


def reference(model: str, inputs: str, init: str = "") -> Problem:
    drawn = f"def get_inputs():\n    return [{inputs}]\n\ndef get_init_inputs():\n    return [{init}]\n"
    return Problem(name="own", source=f"{HEAD}\n{textwrap.dedent(model)}\n{drawn}")


def plain(value: str, inputs: str = "torch.randn(4, 6)", names: str = "x") -> Problem:
    return reference(PLAIN.format(inputs=names, value=value), inputs)


TWO, NAMES = "torch.randn(4, 6), torch.randn(4, 6)", "a, b"
RIGHT = {
    "a number of the constructor's": reference(WITH_A_NUMBER, "torch.randn(4, 6)", "0.25"),
    "no constructor": plain("torch.sum(x, dim=1, keepdim=True)"),
    "two inputs": plain("torch.sub(a, b, alpha=2)", TWO, NAMES),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_kernels_are_right(name: str, tmp_path: Path) -> None:
    problem = RIGHT[name]
    found = one_operator_workload(problem)
    template = template_for(found.op, "cpp") if found else None
    assert found is not None and template is not None
    module = load_module(problem.source, {}, name="reference")
    init, inputs = module.get_init_inputs(), module.get_inputs()
    kernel = imported(template.render(found, template.naive), tmp_path)
    torch.testing.assert_close(kernel.ModelNew(*init)(*inputs), module.Model(*init)(*inputs))


WIDE = "torch.randn(rows, 6)"
SIZES = [Case(sizes={"rows": rows}, dtype=dtype) for rows, dtype in ((4, "float32"), (9, "float64"))]


@pytest.mark.slow
def test_a_problem_with_cases_has_one_kernel(tmp_path: Path) -> None:
    one = plain("torch.softmax(x, dim=-1)", WIDE)
    problem = replace(one, source=f"{one.source}\nrows = 4\n", cases=tuple(SIZES))
    found = one_operator_workload(problem)
    template = template_for(found.op, "cpp") if found else None
    assert found is not None and template is not None
    assert [each.tensors for each in found.signatures] == [("float32",), ("float64",)]
    kernel = imported(template.render(found, template.naive), tmp_path).ModelNew()
    for x in (torch.randn(4, 6), torch.randn(9, 6).double()):
        torch.testing.assert_close(kernel(x), torch.softmax(x, -1))
    assert Playbook().refusal(problem) is None
    other = f"{plain('x * rows', WIDE).source}\nrows = 4\n"
    assert one_operator_workload(replace(problem, source=other)) is None, "a number differs"


@pytest.mark.parametrize(
    "problem",
    [
        plain("x * torch.sigmoid(x)"),
        plain("torch.sub(b, a)", TWO, NAMES),
        plain("torch.relu(a)", TWO, NAMES),
        plain("torch.relu_(x)"),
        plain("torch.sort(x)[0]"),
        plain("torch.cat([x, x])"),
        plain("x.to('cpu') + missing"),
        reference("class Model(nn.Linear):\n    pass\n", "torch.randn(4, 6)", "6, 6"),
    ],
)
def test_others_are_none(problem: Problem) -> None:
    assert one_operator_workload(problem) is None
