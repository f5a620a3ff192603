"""A kernel is only called by its family's name where that says all of what it computes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from evaluators.records.problem import Problem
from kernel_library import best
from kernel_library.catalogue.library import FolderLibrary
from kernel_library.catalogue.meaning import name_implies
from kernel_library.catalogue.traits import traits_of
from tests.kernel_library.entries import entry, reference

CUBE = "torch.randn(2, 3, 3)"


@pytest.mark.parametrize(
    ("op", "forward", "inputs"),
    [
        ("sum", "a[0].sum(-1)", CUBE),
        ("sum", "torch.sum(a[0], dim=2)", CUBE),
        ("softmax", "torch.nn.functional.softmax(a[0], dim=2)", CUBE),
        ("matmul", "a[0] @ a[1]", "torch.randn(4, 5), torch.randn(5, 6)"),
        ("gelu", "torch.nn.functional.gelu(a[0])", CUBE),
        ("sub", "a[0] - a[1]", f"{CUBE}, {CUBE}"),
    ],
)
def test_a_name_implies_what_the_shipped_reference_computes(op: str, forward: str, inputs: str) -> None:
    problem = reference(forward, inputs, device="cpu")
    assert traits_of(problem).op == op
    assert name_implies(op, problem)


@pytest.mark.parametrize(
    ("op", "forward", "inputs"),
    [
        ("sum", "a[0].sum(1)", CUBE),
        ("sum", "a[0].sum(-1, keepdim=True)", CUBE),
        ("sum", "a[0].sum()", CUBE),
        ("softmax", "a[0].softmax(0)", CUBE),
        ("softmax", "(2 * a[0]).softmax(-1)", CUBE),
        ("matmul", "a[0].T @ a[1]", "torch.randn(5, 4), torch.randn(5, 6)"),
        ("matmul", "a[1] @ a[0]", "torch.randn(5, 5), torch.randn(5, 5)"),
        ("gelu", "torch.nn.functional.gelu(a[0], approximate='tanh')", CUBE),
        ("cumsum", "a[0].cumsum(1)", CUBE),
        ("sub", "a[1] - a[0]", f"{CUBE}, {CUBE}"),
        ("exp_log", "a[0].exp().log()", CUBE),
    ],
)
def test_a_name_does_not_imply_another_computation(op: str, forward: str, inputs: str) -> None:
    problem = reference(forward, inputs, device="cpu")
    assert traits_of(problem).op == op
    assert not name_implies(op, problem)


@pytest.mark.slow
def test_a_sum_over_another_dimension_is_not_taken_for_a_sum(tmp_path: Path) -> None:
    def added(forward: str) -> str:
        problem: Problem = reference(forward, CUBE, device="cpu")
        source = (
            f"import torch\nclass ModelNew(torch.nn.Module):\n    def forward(self, *a): return {forward}\n"
        )
        found = entry(problem, source)
        FolderLibrary(tmp_path, seeds=None).add(found)
        return found.id

    wrong = added("a[0].sum(1)")
    x = torch.randn(2, 3, 3)
    functions = {each.id: each.function for each in FolderLibrary(tmp_path, seeds=None).entries()}
    assert functions == {wrong: ""}
    right = added("a[0].sum(2)")
    functions = {each.id: each.function for each in FolderLibrary(tmp_path, seeds=None).entries()}
    assert functions == {wrong: "", right: "ModelNew"}
    torch.testing.assert_close(best("sum", like=x, root=tmp_path)(x), x.sum(-1))
