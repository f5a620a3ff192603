"""Chains of element-wise operators: which references are one, and that their kernels are right."""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluators.problem import Case, Problem
from evaluators.reference.loading import load_module
from search.proposers.playbook.chain import chain_workload
from search.proposers.playbook.playbook import Playbook
from search.proposers.playbook.templates import template_for
from tests.search.proposers.playbook.operator_calls import imported, walked
from tests.search.proposers.playbook.test_one_operator import plain

GELU = "0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))"
THREE = "torch.randn(5, 7), torch.randn(7), torch.randn(5, 1)"
CHAINS = {
    "an activation that is written out": plain(GELU),
    "three inputs, broadcast": plain("F.silu(a) * b + c / 3", THREE, "a, b, c"),
    "a mask": plain("torch.where(x > 0.1, x, x * 0.01) - x.abs()"),
    "a power, and a number twice": plain("(x ** 2 + 2) / 2"),
    "in float32 between": replace(plain("(x.float().sigmoid() * 2).to(x.dtype)"), dtype="bfloat16"),
}


@pytest.mark.parametrize("name", CHAINS)
def test_kernels_are_right(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    problem = CHAINS[name]
    found, template = chain_workload(problem), template_for("pointwise", "cpp")
    assert found is not None and template is not None
    module = load_module(problem.source, {}, name="reference")
    inputs = [each.to(getattr(torch, problem.dtype)) for each in module.get_inputs()]
    for knobs in (template.naive, walked(template, found, 3)):
        kernel = imported(template.render(found, knobs), tmp_path).ModelNew()
        torch.testing.assert_close(kernel(*inputs), module.Model()(*inputs))


@pytest.mark.parametrize("name", CHAINS)
def test_they_are_written_in_triton(name: str) -> None:
    found = chain_workload(replace(CHAINS[name], device="cuda"))
    template = template_for("pointwise", "triton")
    assert found is not None and template is not None and template.valid(found, template.naive)
    source = template.render(found, walked(template, found, 1))
    names = {each.name for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    assert {"supports", "plan", "pointwise"} <= names
    assert f"class ModelNew(torch.nn.Module):\n    def forward(self, {', '.join(found.inputs)}):" in source
    assert Playbook().refusal(replace(CHAINS[name], device="cuda")) is None


def test_all_cases_are_one_chain() -> None:
    one = plain("x * torch.sigmoid(x) * rows ** 0", "torch.randn(rows, 6)")
    source = f"{one.source}\nrows = 4\n"
    cases = tuple(
        Case(sizes={"rows": rows}, dtype=dtype) for rows, dtype in ((4, "float32"), (9, "bfloat16"))
    )
    found = chain_workload(replace(one, source=source, cases=cases))
    assert found is not None
    assert [each.tensors for each in found.signatures] == [("float32",), ("bfloat16",)]
    other = source.replace("rows ** 0", "rows")
    assert chain_workload(replace(one, source=other, cases=cases)) is None, "another number in each"


@pytest.mark.parametrize(
    "problem",
    [
        plain("torch.softmax(x * 2, -1)"),
        plain("(x * 2).sum(-1)"),
        plain("a * 2 + 1", "torch.randn(3), torch.randn(3)", "a, b"),
        plain("(x * 2 > 1)"),
        plain("x.masked_fill(x > 1, float('-inf')) * 2"),
        plain("(x * 2).t() + 1"),
        plain("x.mul_(2) + 1"),
        plain("(x * 2, x * 3)"),
    ],
)
def test_others_are_none(problem: Problem) -> None:
    assert chain_workload(problem) is None
