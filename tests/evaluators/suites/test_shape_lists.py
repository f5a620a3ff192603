"""Operators of Atrex-Bench and KernelBench-Hard as problems, and folders of references."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from evaluators.evaluate.__main__ import main
from evaluators.reference.loading import BadReference, load_module
from evaluators.suites.shape_lists import ShapeLists, load_listed_problem
from evaluators.suites.suite import Folder, SuiteMissing

SCALE = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, factor: float = 1.0):
        super().__init__()
        self.factor = factor

    def forward(self, x, weight):
        return torch.tanh(x) * weight * self.factor
"""
INPUTS = """import torch


def _make_inputs(rows, columns, lengths=None):
    weight = torch.rand(columns, device='cuda')
    return {"weight": weight, "x": torch.randn((rows, columns), dtype=torch.float32, device='cuda')}
"""
HARD = """import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rows):
        super().__init__()

    def forward(self, x):
        return torch.tanh(x)


ROWS = 8
columns = 16


def get_inputs():
    return [torch.randn(ROWS, columns)]


def get_init_inputs():
    return [ROWS]
"""


def atrex(root: Path, count: int, calls: list[int]) -> None:
    folder = root / "scale"
    folder.mkdir(parents=True)
    (folder / "reference.py").write_text(SCALE)
    (folder / "input.py").write_text(INPUTS)
    shapes: dict[str, Any] = {
        str(n): {"init_kwargs": {"factor": 0.5}, "input_kwargs": {"rows": 8 * n, "columns": 16}}
        for n in range(1, count + 1)
    }
    shapes["long"] = {"init_kwargs": None, "input_kwargs": {"rows": 4, "columns": 8, "lengths": [1] * 99}}
    (folder / "shapes.json").write_text(json.dumps(shapes))
    rows = {str(n): {"call_count": each} for n, each in enumerate(calls, 1)}
    (folder / "metadata.json").write_text(json.dumps({"importance_score": 0.25, "shapes": rows}))


@pytest.fixture
def sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of each suite."""
    atrex(tmp_path / "atrex", 15, [1, 70, 0, 0, 29])
    hard = tmp_path / "hard" / "01_tanh"
    hard.mkdir(parents=True)
    (hard / "reference.py").write_text(HARD)
    shapes = '"""Shapes."""\nSHAPES = [{"rows": 8, "columns": 16}, {"rows": 3, "columns": 32}]'
    (hard / "shapes.py").write_text(shapes)
    monkeypatch.setenv("ATREX_BENCH_ROOT", str(tmp_path / "atrex"))
    monkeypatch.setenv("KERNELBENCH_HARD_ROOT", str(tmp_path / "hard"))
    return tmp_path


def test_the_shapes_that_production_calls_most_are_timed(sets: Path) -> None:
    problem = load_listed_problem("atrex/scale", timed_workloads=3)
    timed = [(case.sizes["shape"], case.weight) for case in problem.cases if case.weight]
    assert timed == [
        ("factor=0.5 rows=40 columns=16", 0.29),
        ("factor=0.5 rows=16 columns=16", 0.7),
        ("factor=0.5 rows=8 columns=16", 0.01),
    ]
    assert len(problem.cases) == 11
    module = load_module(problem.source, problem.cases[1].sizes)
    x, weight = module.get_inputs()
    assert (x.shape, weight.shape) == ((16, 16), (16,))
    assert module.get_init_inputs() == [[], {"factor": 0.5}]
    drawn = {module.get_held_out(Random(n))["shape"] for n in range(40)}
    assert drawn and not drawn & {case.sizes["shape"] for case in problem.cases}
    (entry,) = ShapeLists("atrex").entries()
    assert (entry.problem, entry.weight) == ("atrex/scale", 0.25)


def test_long_lists_are_short_in_names(sets: Path) -> None:
    problem = load_listed_problem("atrex/scale", timed_workloads=2, checked_workloads=20)
    names = [str(case.sizes["shape"]) for case in problem.cases]
    (name,) = (each for each in names if "lengths" in each)
    assert name.startswith("rows=4 columns=8 lengths=99 values ")
    assert (
        torch.equal(load_module(problem.source, {"shape": name}).get_inputs()[0], torch.empty(4, 8)) is False
    )


def test_listed_shapes_name_globals_in_either_case(sets: Path) -> None:
    problem = load_listed_problem("kernelbench_hard/01_tanh")
    assert [case.sizes for case in problem.cases] == [{"ROWS": 8, "columns": 16}, {"ROWS": 3, "columns": 32}]
    assert all(case.weight for case in problem.cases)


def test_what_cannot_be_read_is_said(sets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadReference, match=r"atrex has no operator scales; did you mean scale\?"):
        load_listed_problem("atrex/scales")
    (sets / "hard/01_tanh/shapes.py").write_text("SIZES = []")
    with pytest.raises(BadReference, match=r"cannot be read: ValueError: shapes\.py does not assign SHAPES"):
        load_listed_problem("kernelbench_hard/01_tanh")
    (sets / "atrex/scale/shapes.json").write_text("{")
    with pytest.raises(BadReference, match="atrex/scale cannot be read: JSONDecodeError"):
        load_listed_problem("atrex/scale")
    monkeypatch.setenv("ATREX_BENCH_ROOT", str(sets / "hard"))
    with pytest.raises(SuiteMissing, match=r"has no folders with reference\.py, input\.py, shapes\.json"):
        ShapeLists("atrex").entries()
    monkeypatch.delenv("ATREX_BENCH_ROOT")
    with pytest.raises(SuiteMissing, match="set ATREX_BENCH_ROOT to the folder of its operators"):
        ShapeLists("atrex").entries()


def test_a_folder_of_references(sets: Path) -> None:
    (entry,) = Folder("folder", str(sets)).entries()
    assert entry.problem == str(sets / "hard/01_tanh/reference.py")
    with pytest.raises(SuiteMissing, match="no files that define Model and get_inputs"):
        Folder("folder", str(sets / "atrex")).entries()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("result", "status"),
    [
        ("torch.tanh(x) * (weight * self.factor)", "correct"),
        ("torch.tanh(x) * weight * self.factor * 8 / len(x)", "incorrect"),
    ],
)
def test_a_kernel_is_judged_on_all_shapes(
    result: str, status: str, sets: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrong one is right with eight rows only."""
    model = "class ModelNew(nn.Module):\n    def __init__(self, factor=1.0):\n        super().__init__()\n"
    model += "        self.factor = factor\n\n"
    model += f"    def forward(self, x, weight):\n        return {result}\n"
    (sets / "kernel.py").write_text(f"import torch\nfrom torch import nn\n\n\n{model}")
    main(
        [
            *("problem=atrex/scale", f"kernel={sets / 'kernel.py'}", "device=cpu", "json=true"),
            *("evaluator.plan.max_s=0.2", "evaluator.plan.precision=0.2", "evaluator.compile_mode="),
            *("problem.timed_workloads=2", "problem.checked_workloads=1", "thorough=false"),
        ]
    )
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["status"] == status
