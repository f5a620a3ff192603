"""Long rows that are split over many programs in Triton: in the source, and right in Triton's interpreter."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from evaluators.records.problem import Problem
from evaluators.reference.loading import load_module
from search.proposers.playbook.move import Knobs
from search.proposers.playbook.playbook import Playbook
from search.proposers.playbook.templates import template_for
from tests.search.proposers.playbook.operator_calls import imported, workload, wrong
from tests.search.proposers.playbook.test_one_operator import plain

TWO = "torch.rand(7, 1100), torch.rand(7, 1100)"
SHARES = "(torch.rand(8, 1000) + 0.1).softmax(1), torch.rand(8, 1000).softmax(1)"
LOST = "torch.where(torch.arange(12600).reshape(3, 4200) == 6789, float('nan'), torch.rand(3, 4200) - 2)"
THREE = plain("x.sum(1)", "torch.rand(3, 200000) / 8")
EQUAL = plain("(x + 0).mean()", "torch.full((2**18,), 0.6754)")
CASES: dict[str, tuple[Problem, Knobs]] = {
    "a mean of squares": (plain("((a - b) ** 2).mean() * 3", TWO, "a, b"), {}),
    "a divergence": (plain("F.kl_div(torch.log(a), b, reduction='batchmean')", SHARES, "a, b"), {}),
    "a hinge": (plain("torch.mean(torch.clamp(1 - a * b, min=0))", TWO, "a, b"), {"rows": 8, "narrow": True}),
    "three rows": (THREE, {"block": 1024}),
    "three rows of half precision": (replace(THREE, dtype="float16"), {"block": 1024, "merged": True}),
    "a row": (replace(plain("(x * 2).sum(1)", "torch.rand(2, 4200)"), dtype="float16"), {}),
    "columns": (plain("(x * 2).sum(0)", "torch.rand(4200, 5)"), {"rows": 4}),
    "a mean over the middle": (plain("x.mean(1, keepdim=True)", "torch.rand(2, 2100, 3)"), {"rows": 2}),
    "a lost number": (plain("x.amax(1)", LOST), {}),
    "a lost number in a chain": (plain("(x * -2).amin(1) + c", f"{LOST}, torch.rand(3)", "x, c"), {}),
    "two reductions": (plain("(x * 2).amax(1) - x.sum(1)", "torch.rand(3, 4200)"), {}),
    "one after the other": (plain("(x + 1).std(1) / 2", "torch.randn(3, 4200)"), {}),
    "a logarithm of powers": (plain("(x * 2).logsumexp(1)", "torch.randn(3, 4200)"), {}),
    "a variance": (plain("x.var(0, keepdim=True)", "torch.randn(4200, 3)"), {}),
    "each by the norm": (plain("x / x.pow(2).sum().sqrt()", "torch.rand(3, 4200)"), {"narrow": True}),
    "shares": (plain("torch.softmax(x * 3, 1)", "torch.randn(2, 1500)"), {"rows": 4}),
    "equal numbers": (EQUAL, {"merged": True}),
}
"""References with knobs other than naive."""
CALLS = {
    "aten.sum.dim_IntList": "((T([3, 4200], i64), [1],), {})",
    "aten.any.dim": "((T([3, 4200], f32), 1,), {})",
    "aten.all.default": "((T([4200], f32),), {})",
    "aten.amax.default": "((T([3, 4200], i32), [1], True,), {})",
    "aten.prod.default": "((T([4200], f32),), {})",
    "aten.count_nonzero.default": "((T([3, 4200], f32),), {})",
}
"""Of other types and with other merges."""
RUNNER = """
import sys
from pathlib import Path
from tests.search.proposers.playbook.templates.test_triton_split import run
run(Path(sys.argv[1]))
"""


def rendered(problem: Problem, knobs: Knobs) -> str:
    of = Playbook().workload(replace(problem, device="cuda"))
    template = template_for(of.op, "triton") if of else None
    assert of is not None and template is not None
    assert template.valid(of, {**template.naive, **knobs})
    return template.render(of, {**template.naive, **knobs})


def counted(source: str, folder: Path) -> tuple[Any, list[int]]:
    """A kernel that splits shorter rows into fewer parts, and the number of parts of each call."""
    module, parts = imported(source, folder), []
    module.LONG, module.PROGRAMS, split = 1000, 9, module.in_parts
    module.in_parts = lambda *given: (parts.append(given[3][0]), split(*given))[1]
    return module, parts


def run(folder: Path) -> None:
    """Leaves in `results.json` the errors of all kernels, relative to the largest number, and their parts."""
    results: dict[str, Any] = {}
    for name, (problem, knobs) in CASES.items():
        module, parts = counted(rendered(problem, knobs), folder)
        reference, dtype = load_module(problem.source, {}, name="reference"), getattr(torch, problem.dtype)
        torch.manual_seed(3)
        inputs = [each.to(dtype) for each in reference.get_inputs()]
        out = module.ModelNew()(*inputs)
        exact = reference.Model()(*(each.double() for each in inputs))
        assert (out.shape, out.dtype) == (exact.shape, dtype), name
        assert torch.equal(out.isnan(), exact.isnan()), name
        error = (out.double() - exact).nan_to_num().abs().max() / exact.nan_to_num().abs().max()
        results[name] = {"error": error.item(), "lost": int(out.isnan().sum()), "parts": parts}
    for operator, call in CALLS.items():
        of = workload(operator, [call], device="cuda")
        template = template_for(of.op, "triton")
        assert template is not None
        module, parts = counted(template.render(of, template.naive), folder)
        results[operator] = {"wrong": wrong(module, operator, call), "parts": parts}
    memory = torch.empty(3 * 2**30 + 8, dtype=torch.float16)  # of which few pages are touched
    apart = memory.as_strided((2, 4), (1, 2**30)).copy_(torch.arange(8.0).view(2, 4))
    module = imported(rendered(*CASES["a row"]), folder)
    results["far apart"] = module.ModelNew()(apart).tolist()
    (folder / "results.json").write_text(json.dumps(results))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Of all kernels, in one process: the interpreter starts slowly."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    folder = tmp_path_factory.mktemp("split")
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, str(folder)],
        env=dict(os.environ, TRITON_INTERPRET="1"),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "results.json").read_text())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_split_rows_are_right_in_the_interpreter(name: str, results: Any) -> None:
    found, most = results[name], {"float16": 1e-3}.get(CASES[name][0].dtype, 2e-6)
    assert found["parts"] and found["parts"][0] > 1
    assert found["error"] < most
    assert found["lost"] == (1 if "lost" in name else 0)


@pytest.mark.slow
@pytest.mark.parametrize("operator", CALLS)
def test_other_types_and_merges_are_right_in_the_interpreter(operator: str, results: Any) -> None:
    assert results[operator]["wrong"] == ""
    assert results[operator]["parts"][0] > 1


@pytest.mark.slow
def test_elements_of_a_row_may_lie_beyond_32_bits(results: Any) -> None:
    assert results["far apart"] == [12.0, 44.0]


@pytest.mark.slow
def test_a_mean_of_many_equal_numbers_is_exact(results: Any) -> None:
    """Their rounding errors all have one sign: in the one program of a row that is not split, the sum of 1024
    in each lane is off by 1.5e-5, and with parts it is by 9e-7."""
    assert results["equal numbers"]["error"] < 2e-6


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("a mean of squares", ["gather_0", "combine_0"]),
        ("three rows", ["gather_0", "combine_0"]),
        ("two reductions", ["gather_0", "combine_0"]),
        ("one after the other", ["gather_0", "combine_0", "gather_1", "combine_1"]),
        ("a variance", ["gather_0", "combine_0", "gather_1", "combine_1"]),
        ("each by the norm", ["gather_0", "combine_0", "write"]),
        ("shares", ["gather_0", "combine_0", "gather_1", "combine_1", "write"]),
    ],
)
def test_a_kernel_gathers_in_as_many_rounds_as_it_must(name: str, wanted: list[str]) -> None:
    tree = ast.parse(rendered(*CASES[name]))
    names = [each.name for each in tree.body if isinstance(each, ast.FunctionDef)]
    assert [each for each in names if each.split("_")[0] in ("gather", "combine", "write")] == wanted


def test_parts_are_many_where_rows_are_few_and_short_enough_to_be_added_up() -> None:
    tree = ast.parse(rendered(*CASES["three rows"]))
    wanted = ("FEW", "LONG", "ADDITIONS", "def parts_of")
    body = [each for each in tree.body if ast.unparse(each).strip("(").startswith(wanted)]
    space: dict[str, Any] = {"triton": SimpleNamespace(cdiv=lambda count, block: -(-count // block))}
    exec(compile(ast.Module(body=body, type_ignores=[]), "parts", "exec"), space)
    parts_of = space["parts_of"]
    assert parts_of((1, 2**16), 1, 256) == (1, 2**16)
    assert parts_of((300, 2**20), 1, 256)[0] == 1, "many rows"
    assert parts_of((300, 2**20 + 1), 1, 256)[0] > 1, "too long for a lane's sums"
    for rows, length in ((1, 2**16 + 1), (1, 2**30), (3, 200_000), (32, 2**24), (300, 2**22)):
        for block in (256, 4096):
            parts, size = parts_of((rows, length), 1, block)
            assert (parts - 1) * size < length <= parts * size
            assert size % block == 0 and size // block <= 128
            assert size == block or rows * parts >= 2112
