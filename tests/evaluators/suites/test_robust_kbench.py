"""robust-kbench's tasks as problems, out of a clone in its layout with a task of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evaluators.app.command import build, compose_config
from evaluators.device.worker import Worker
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.evaluation import Status
from evaluators.records.problem import Kernel
from evaluators.reference.loading import BadReference, init_inputs, load_module, make_inputs
from evaluators.suites.robust_kbench import ROOT, RobustKBench, load_robust_kbench_problem
from evaluators.suites.suite import SuiteMissing
from tests.evaluators.device.kernels import SETTINGS

SOURCE = """import torch
from torch import nn


def forward_fn(x, weight, bias):
    return torch.tanh(x * weight) + bias


class Model(nn.Module):
    def __init__(self, features: int = 4, init_method: str = "ones"):
        super().__init__()
        make = torch.ones if init_method == "ones" else torch.randn
        self.weight = nn.Parameter(make(features))
        self.bias = nn.Parameter(torch.zeros(features))

    def forward(self, x, fn=forward_fn):
        return fn(x, self.weight, self.bias)


def get_inputs(batch_size: int = 2, features: int = 4):
    return [torch.randn(batch_size, features, requires_grad=True)]
"""


def config(batch_size: int) -> dict[str, Any]:
    return {
        "single_input_configs": [{"batch_size": batch_size}],
        "single_init_configs": [{"init_method": "random", "features": 1}],
        "single_shared_configs": [{"features": 16}],
        "multi_input_configs": [{"batch_size": 4}, {"batch_size": batch_size}],
        "multi_init_configs": [{"init_method": "random"}, {"init_method": "ones"}],
        "multi_shared_configs": [{"features": 16}],
    }


@pytest.fixture(autouse=True)
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ROOT, str(tmp_path))
    for name, passes in (("scale", ("forward", "backward")), ("only_forward", ("forward",))):
        folder = tmp_path / "tasks" / name
        folder.mkdir(parents=True)
        (folder / "func_forward.py").write_text(SOURCE)
        for number, each in enumerate(passes):
            (folder / f"config_{each}.json").write_text(json.dumps(config(8 * (1 + number))))
    (tmp_path / "tasks" / "kernelbench").mkdir()
    return tmp_path


def test_a_task_is_a_problem_whose_sizes_are_those_of_its_config() -> None:
    problem = load_robust_kbench_problem("robust_kbench/scale")
    assert (problem.name, problem.backward) == ("robust_kbench/scale", False)
    module = load_module(problem.source, {})
    assert init_inputs(module, 0).named == {"features": 16, "init_method": "random"}, "shared sizes win"
    (x,) = make_inputs(module, seed=0, device="cpu", dtype="float32")
    assert x.shape == (8, 16)
    timed, *checked = problem.cases
    assert not timed.sizes and timed.weight == 1
    assert [each.weight for each in checked] == [0, 0, 0]
    sizes = [(each.sizes["batch_size"], each.sizes["init_method"]) for each in checked]
    assert sizes == [(4, "random"), (4, "ones"), (8, "ones")]
    module = load_module(problem.source, checked[1].sizes)
    assert init_inputs(module, 0).named["init_method"] == "ones"
    assert make_inputs(module, seed=0, device="cpu", dtype="float32")[0].shape == (4, 16)


def test_training_has_the_tasks_with_a_backward_pass() -> None:
    def names(train: bool) -> list[str]:
        return [each.problem for each in RobustKBench("x", train=train).entries()]

    assert names(False) == ["robust_kbench/only_forward", "robust_kbench/scale"]
    assert names(True) == ["robust_kbench/training/scale"]
    problem = load_robust_kbench_problem("robust_kbench/training/scale", cases=[], backward=False)
    assert problem.backward and not problem.cases
    (x,) = make_inputs(load_module(problem.source, {}), seed=0, device="cpu", dtype="float32")
    assert x.shape == (16, 16)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("robust_kbench/scales", "no task scales; did you mean scale?"),
        ("robust_kbench/training/only_forward", "no task only_forward with a backward pass; it has scale"),
    ],
)
def test_an_unknown_task_costs_one_line(name: str, says: str) -> None:
    with pytest.raises(BadReference, match=says.replace("?", r"\?")):
        load_robust_kbench_problem(name)


def test_a_config_that_is_none_and_a_missing_clone_cost_one_line(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (clone / "tasks" / "scale" / "config_forward.json").write_text("{}")
    with pytest.raises(BadReference, match="is no config of robust-kbench: KeyError"):
        load_robust_kbench_problem("robust_kbench/scale")
    (clone / "tasks" / "scale" / "func_forward.py").write_text("def")
    (clone / "tasks" / "scale" / "config_forward.json").write_text(json.dumps(config(8)))
    with pytest.raises(BadReference, match="is not Python: line 1"):
        load_robust_kbench_problem("robust_kbench/scale")
    monkeypatch.setenv(ROOT, str(clone / "nowhere"))
    with pytest.raises(SuiteMissing, match=f"clone github.com/SakanaAI/robust-kbench and set {ROOT}"):
        load_robust_kbench_problem("robust_kbench/scale")


@pytest.mark.slow
def test_its_kernels_are_judged(tmp_path: Path) -> None:
    composed = compose_config(EvaluateConfig, ["problem=robust_kbench/training/scale", "kernel=none"])
    problem = build(composed.problem, device="cpu", cases=[], timed=False)
    right = SOURCE.replace("class Model(", "class ModelNew(")
    wrong = right.replace("weight) + bias", "weight) + bias.detach()")
    worker = Worker(root=tmp_path / "root", settings=SETTINGS)
    try:
        for source, status in ((right, Status.CORRECT), (wrong, Status.INCORRECT)):
            found = worker.measure(problem, Kernel(source=source, language="cpp"), b"")
            assert found.status is status, found.log
    finally:
        worker.close()
