"""The C++ templates of operators, naive and with random valid knobs, against PyTorch over odd calls."""

import subprocess
import sys
from pathlib import Path

import pytest

from search.proposers.playbook.templates import template_for
from tests.search.proposers.playbook.operator_calls import (
    CALLS,
    imported,
    walked,
    workload,
    wrong_calls,
)

pytestmark = pytest.mark.usefixtures("shared_builds")


@pytest.mark.slow
@pytest.mark.parametrize("operator", CALLS)
def test_kernels_are_right(operator: str, tmp_path: Path) -> None:
    of = workload(operator, CALLS[operator])
    template = template_for(of.op, "cpp")
    assert template is not None
    assert template.valid(of, template.naive)
    for seed in range(2):
        knobs = walked(template, of, seed) if seed else template.naive
        kernel = imported(template.render(of, knobs), tmp_path)
        declined = [f"{operator} {CALLS[operator][2]}: declined"] if operator == "aten.add.Tensor" else []
        assert wrong_calls(kernel, operator, CALLS[operator]) == declined, knobs


@pytest.mark.slow
def test_a_kernel_declines_types_that_no_case_has(tmp_path: Path) -> None:
    import torch

    of = workload("aten.exp.default", ["((T([3], f32),), {})"])
    template = template_for(of.op, "cpp")
    assert template is not None
    kernel = imported(template.render(of, template.naive), tmp_path)
    assert kernel.supports(torch.zeros(2, 2))
    assert not kernel.supports(torch.zeros(2, dtype=torch.float64))
    assert not kernel.supports(torch.zeros([1] * 9))


@pytest.mark.slow
def test_a_long_product_in_single_sums_is_as_exact_as_sums_of_sums_are(tmp_path: Path) -> None:
    """Of equal elements, whose rounding errors all have one sign, one sum after the other was off by 2e-6."""
    import torch

    of = workload("aten.mm.default", ["((T([2, 512], f32), T([512, 16], f32),), {})"])
    template = template_for(of.op, "cpp")
    assert template is not None
    knobs = {**template.naive, "loop": "columns", "sums": "float"}
    left, right = torch.full((2, 512), 0.1117), torch.full((512, 16), 0.00719)
    made = imported(template.render(of, knobs), tmp_path).ModelNew()(left, right)
    exact = left.double() @ right.double()
    assert ((made - exact) / exact).abs().max() < 5e-7


FIRST_CALL = """
import runpy, sys, torch
kernel = runpy.run_path("kernel.py", run_name="kernel")["ModelNew"](alpha=1)
assert kernel(torch.ones(3, 1), torch.ones(4)).shape == (3, 4)
assert "sympy" not in sys.modules
try:
    kernel(torch.ones(3), torch.ones(4))
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_first_call_does_without_sympy(tmp_path: Path) -> None:
    """`torch.broadcast_shapes` imports it: up to two seconds of every evaluation."""
    of = workload("aten.add.Tensor", ["((T([3, 1], f32), T([4], f32),), {})"])
    template = template_for(of.op, "cpp")
    assert template is not None
    (tmp_path / "kernel.py").write_text(template.render(of, template.naive))
    called = subprocess.run(
        [sys.executable, "-c", FIRST_CALL], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert called.returncode == 0, called.stderr
    assert "cannot broadcast" in called.stdout
