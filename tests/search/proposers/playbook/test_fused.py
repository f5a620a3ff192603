"""Plain references of several operators: which are read, and that their kernels are right."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from evaluators.records.problem import Case, Problem
from evaluators.reference.loading import KEEPS_TYPES, load_module, make_inputs
from search.proposers.playbook.fused import fused_workload
from search.proposers.playbook.playbook import Playbook
from search.proposers.playbook.templates import template_for
from tests.search.proposers.playbook.operator_calls import imported, walked
from tests.search.proposers.playbook.test_one_operator import plain

pytestmark = pytest.mark.usefixtures("shared_builds")

GELU = "0.5 * x * (1.0 + torch.tanh(0.79788456 * (x + 0.044715 * torch.pow(x, 3.0))))"


def mixed(problem: Problem) -> Problem:
    return replace(problem, source=f"{problem.source}\n{KEEPS_TYPES} = True\n")


THREE = "torch.randn(5, 7), torch.randn(7), torch.randn(5, 1)"
CHAINS = {
    "an activation that is written out": plain(GELU),
    "three inputs, broadcast": plain("F.silu(a) * b + c / 3", THREE, "a, b, c"),
    "a mask": plain("torch.where(x > 0.1, x, x * 0.01) - x.abs()"),
    "a power, and a number twice": plain("(x ** 2 + 2) / 2"),
    "two floating types": mixed(
        plain("(a.float() * b).relu()", "torch.randn(5, 7).bfloat16(), torch.randn(7)", "a, b")
    ),
    "in float32 between": replace(plain("(x.float().sigmoid() * 2).to(x.dtype)"), dtype="bfloat16"),
}
VIEWS = {
    "other slices of one tensor": plain(
        "x[:, :3] * x[:, 3:].sigmoid() + b", "torch.randn(4, 6), torch.randn(4, 3)", "x, b"
    ),
    "views among operators": plain(
        "(a.reshape(2, 3, 4) * 2 + b).transpose(1, 2).reshape(2, 12).relu() - c",
        "torch.randn(6, 4), torch.randn(4), torch.randn(12)",
        "a, b, c",
    ),
    "batch norm, and a change in place": plain(
        "torch.ops.aten.add_.Tensor(F.batch_norm(a, m, v, w, b), a[:, :1]).relu()",
        "torch.randn(2, 3, 4, 5), torch.rand(3), torch.rand(3) + 0.1, torch.randn(3), torch.randn(3)",
        "a, m, v, w, b",
    ),
}
ROWS = {
    "softmax of what is scaled and masked": plain(
        "torch.softmax((a * 0.5).masked_fill(b, float('-inf')) + c, -1)",
        "torch.randn(2, 4, 6), torch.eye(4, 6) > 0, torch.randn(6)",
        "a, b, c",
    ),
    "a norm of a sum, in half precision": replace(
        plain(
            "F.gelu(F.layer_norm(a.reshape(2, 3, 8) + b, [8], c, d, 1e-5)).reshape(6, 8)",
            "torch.randn(6, 8), torch.randn(2, 3, 8), torch.randn(8), torch.randn(8)",
            "a, b, c, d",
        ),
        dtype="bfloat16",
    ),
    "RMS norm that is written out": plain(
        "(b * (a.float() * torch.rsqrt(a.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(a.dtype)).t()",
        "torch.randn(3, 40), torch.randn(40)",
        "a, b",
    ),
    "a norm in half precision by numbers in float32": mixed(
        plain(
            "((a.float() - m) * s * w).to(a.dtype).softmax(-1)",
            "torch.randn(3, 40).half(), torch.randn(3, 1), torch.rand(3, 1), torch.randn(40).half()",
            "a, m, s, w",
        )
    ),
    "a mean over no last dimension": plain("x - x.mean(1).unsqueeze(1)", "torch.randn(3, 5, 7)"),
    "a loss": plain("((a - b) ** 2).mean() * 3", "torch.randn(5, 7), torch.randn(5, 1)", "a, b"),
    "two reductions of a row": plain(
        "(x * 2).amax(1) - x.sum(1) + c", "torch.randn(4, 6), torch.randn(4)", "x, c"
    ),
    "a standard deviation": plain("(x + 1).std(0, keepdim=True) / 2", "torch.randn(4, 6)"),
    "log-softmax": plain("-F.log_softmax(x * 3, 1)", "torch.randn(4, 6, 2)"),
}
BESIDE = {
    "a product before": plain(
        "F.silu(F.linear(x.reshape(6, 8), w)).reshape(2, 3, 5) * y",
        "torch.randn(2, 3, 8), torch.randn(5, 8), torch.randn(2, 3, 5)",
        "x, w, y",
    ),
    "a product behind": plain(
        "torch.addmm(c, F.layer_norm(x, [8]).reshape(6, 8), w)",
        "torch.randn(2, 3, 8), torch.randn(5), torch.randn(8, 5)",
        "x, c, w",
    ),
    "halves that are turned": plain(
        "x * c + torch.cat([-x[..., 3:], x[..., :3]], -1) * s",
        "torch.randn(2, 4, 6), torch.randn(4, 6), torch.randn(4, 6)",
        "x, c, s",
    ),
}
PRODUCTS = {
    "a product behind views": plain(
        "torch.addmm(c, x.transpose(1, 2).reshape(6, 8), w.t()).reshape(2, 3, 5)",
        "torch.randn(2, 8, 3), torch.randn(5), torch.randn(5, 8)",
        "x, c, w",
    ),
    "batches of heads": plain(
        "a @ b.transpose(-1, -2)", "torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5)", "a, b"
    ),
}
CONVOLUTIONS = {
    "a convolution": plain(
        "F.conv2d(x, w, b, 2, (1, 0)).reshape(2, 4, -1)",
        "torch.randn(2, 3, 9, 8), torch.randn(4, 3, 3, 2), torch.randn(4)",
        "x, w, b",
    ),
    "one without a bias": plain("F.conv2d(x, w)", "torch.randn(1, 3, 9, 8), torch.randn(4, 3, 1, 1)", "x, w"),
}
FAMILIES = {"pointwise": CHAINS | VIEWS, "rows": ROWS, "product": PRODUCTS, "conv2d": CONVOLUTIONS}
KNOWN = CHAINS | VIEWS | ROWS | BESIDE | PRODUCTS | CONVOLUTIONS


INTERPRETED = """
import sys
from pathlib import Path
from tests.search.proposers.playbook.operator_calls import imported
from tests.search.proposers.playbook.test_fused import KNOWN, close, given
for kernel in sys.argv[2:]:
    module = imported(Path(kernel).read_text(), Path(kernel).parent)
    inputs, expected = given(KNOWN[sys.argv[1]])
    close(module.ModelNew()(*inputs), expected)
"""


def given(problem: Problem) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Inputs of a reference, and its output."""
    module = load_module(problem.source, {}, name="reference")
    inputs = make_inputs(module, seed=None, device="cpu", dtype=problem.dtype)
    return inputs, module.Model()(*inputs)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """A kernel does not round between its steps, as PyTorch does."""
    off = {} if expected.dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(found, expected, **off)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_kernels_are_right(name: str, tmp_path: Path) -> None:
    problem = KNOWN[name]
    found = fused_workload(problem)
    template = template_for(found.op, "cpp") if found else None
    assert found is not None and template is not None
    inputs, expected = given(problem)
    for knobs in (template.naive, *([] if found.op == "conv2d" else [walked(template, found, 3)])):
        kernel = imported(template.render(found, knobs), tmp_path)
        assert found.op == "conv2d" or kernel.supports(*inputs)
        close(kernel.ModelNew()(*inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN)
def test_they_are_written_in_triton(name: str) -> None:
    problem = replace(KNOWN[name], device="cuda")
    found = fused_workload(problem)
    template = template_for(found.op, "triton") if found else None
    assert found is not None and template is not None and template.valid(found, template.naive)
    source = template.render(found, walked(template, found, 1))
    names = {each.name for each in ast.parse(source).body if isinstance(each, ast.FunctionDef)}
    assert found.op == "conv2d" or {"supports", "plan"} <= names
    assert Playbook().refusal(problem) is None


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ROWS, *VIEWS])
def test_triton_kernels_are_right_in_the_interpreter(name: str, tmp_path: Path) -> None:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    found = fused_workload(replace(KNOWN[name], device="cpu"))  # batch norm in the order of a CPU
    template = template_for(found.op, "triton") if found else None
    assert found is not None and template is not None
    for number, knobs in enumerate([template.naive, walked(template, found, 1), walked(template, found, 4)]):
        (tmp_path / f"{number}.py").write_text(template.render(found, knobs))
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED, name, *map(str, tmp_path.glob("*.py"))],
        env=dict(os.environ, TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.parametrize("op", FAMILIES)
def test_one_kernel_has_all_of_it(op: str) -> None:
    for name, problem in FAMILIES[op].items():
        found = fused_workload(replace(problem, libraries="no_library"))
        assert found is not None and found.op == op, name


@pytest.mark.parametrize("name", BESIDE)
def test_what_a_library_computes_is_left_to_it_where_that_is_allowed(name: str) -> None:
    assert fused_workload(replace(BESIDE[name], libraries="no_library")) is None
    found = fused_workload(BESIDE[name])
    assert found is not None and found.around is not None
    lines = " ".join(found.around.lines)
    assert "self.kernel(" in lines and ("mm.default(" in lines or "cat.default(" in lines)


@pytest.mark.slow
def test_a_size_that_differs_from_case_to_case_is_left_open(tmp_path: Path) -> None:
    one = plain(
        "(a + b.reshape(rows, 3, 8)).relu()", "torch.randn(rows, 3, 8), torch.randn(3 * rows, 8)", "a, b"
    )
    cases = tuple(Case(sizes={"rows": rows}) for rows in (2, 5))
    found = fused_workload(replace(one, source=f"{one.source}\nrows = 2\n", cases=cases))
    template = template_for("pointwise", "cpp")
    assert found is not None and found.around is not None and template is not None
    assert "b.reshape([-1, 3, 8])" in found.around.lines[0]
    kernel = imported(template.render(found, template.naive), tmp_path).ModelNew()
    for rows in (2, 5):
        a, b = torch.randn(rows, 3, 8), torch.randn(3 * rows, 8)
        torch.testing.assert_close(kernel(a, b), (a + b.reshape(rows, 3, 8)).relu())


def test_all_cases_are_one_chain() -> None:
    one = plain("x * torch.sigmoid(x) * rows ** 0", "torch.randn(rows, 6)")
    source = f"{one.source}\nrows = 4\n"
    cases = tuple(
        Case(sizes={"rows": rows}, dtype=dtype) for rows, dtype in ((4, "float32"), (9, "bfloat16"))
    )
    found = fused_workload(replace(one, source=source, cases=cases))
    assert found is not None
    assert [each.tensors for each in found.signatures] == [("float32",), ("bfloat16",)]
    other = source.replace("rows ** 0", "rows")
    assert fused_workload(replace(one, source=other, cases=cases)) is None, "another number in each"


@pytest.mark.parametrize(
    "problem",
    [
        plain("x.mul_(2) + 1"),
        plain("(x.sigmoid(), x.sigmoid()[:1].mul_(3))[0] + 1"),
        plain("(x * 2, x * 3)"),
        plain("torch.sort(x)[0]"),
        plain("x.t()"),
        plain("x + torch.zeros(6, device=x.device)"),
        plain("F.scaled_dot_product_attention(x, x, x)", "torch.randn(1, 2, 4, 8)"),
    ],
)
def test_others_are_none(problem: Problem) -> None:
    assert fused_workload(problem) is None
