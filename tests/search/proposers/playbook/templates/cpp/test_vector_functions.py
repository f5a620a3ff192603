"""Functions that are vectors: as exact as the C library's, and there only where the knob says so."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from search.proposers.playbook.fused import fused_workload
from search.proposers.playbook.templates import template_for
from search.proposers.playbook.templates.cpp import vector_functions
from tests.search.proposers.playbook.operator_calls import imported
from tests.search.proposers.playbook.test_one_operator import plain

pytestmark = pytest.mark.usefixtures("shared_builds")

EDGES = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 88.7, 89.0, -87.0, -103.0])
VALUES = torch.cat([torch.linspace(-110, 95, 20001), torch.linspace(-4, 4, 20001), EDGES])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "error"), [("exp", 2e-7), ("tanh", 2e-7), ("erf", 4e-7)])
def test_they_are_exact(name: str, error: float, tmp_path: Path) -> None:
    workload, template = fused_workload(plain(f"torch.{name}(x) * 1")), template_for("pointwise", "cpp")
    assert workload is not None and template is not None
    knobs = {**template.naive, "loop": "rows", "flags": "-O3 -march=native", "functions": "vectors"}
    source = template.render(workload, knobs)
    assert f"vector_{name}(" in source
    made = imported(source, tmp_path).ModelNew()(VALUES)
    exact = getattr(torch, name)(VALUES.double())
    torch.testing.assert_close(made, exact.float(), rtol=error, atol=1e-37, equal_nan=True)


def test_the_idea_is_for_formulas_that_call_them() -> None:
    template = template_for("pointwise", "cpp")
    assert template is not None
    knobs = {**template.naive, "flags": "-O3 -march=native"}
    for value, fits in (("x.sigmoid() * 2", True), ("x.abs() * 2", False)):
        workload = fused_workload(plain(value))
        assert workload is not None
        assert vector_functions.MOVE.fits(workload, knobs) is fits
        assert "vector_" not in template.render(workload, knobs)
