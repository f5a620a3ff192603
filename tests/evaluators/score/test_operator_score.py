"""Scoring a folder of operators' kernels in BackendBench's layout, with every version."""

from __future__ import annotations

import asyncio
import csv
import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from evaluators.app.suite_config import RulesConfig, open_problem, operator_opener
from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import CaseResult, Evaluation, Status
from evaluators.records.overhead import bound_cases, speedup_beyond
from evaluators.records.problem import Problem
from evaluators.reference.loading import load_module
from evaluators.score import __main__ as score
from evaluators.score import operator_score
from evaluators.score.operator_score import JudgedVersion, best_of, measures
from evaluators.suites import operators
from evaluators.suites.operator_call import as_aten
from evaluators.suites.operator_folder import Version, versions_in
from evaluators.suites.operators import kernel_source
from evaluators.suites.traced.files import TRACES
from tests.evaluators.records.test_cases import correct

TRACE = """
Operator: aten.add.Tensor
cnt: 3, ((T([8, 64], f32), T([8, 64], f32)), {'alpha': 2})
cnt: 1, ((T([8, 64], f32), T([64], f32)), {})
Operator: aten.relu_.default
cnt: 1, ((T([8, 64], f32),), {})
"""
QUICK = [
    *("device=cpu", "evaluator.timeout_s=4", "evaluator.compile_mode=", "evaluator.threads=1"),
    *("evaluator.max_calls=8", "evaluator.plan.max_s=0.2", "evaluator.plan.precision=0.2"),
]
"""Short measurements: precise times do not matter here."""
ADD = """
import torch

def add__Tensor_kernel_impl(input, other, alpha=1):
    return torch.sub(input, other, alpha=-alpha)
"""
RELU = """
import torch

def relu___default_kernel_impl(input):
    return input.clamp_(min=0)
"""
FILES = {
    "add__Tensor/add__Tensor_implementation_v1.py": ADD.replace("alpha=-alpha", "alpha=-1"),
    "add__Tensor/add__Tensor_implementation_v2.py": ADD,
    "add__Tensor/add__Tensor_implementation_v10.py": "def (",
    "relu___default/relu___default_implementation_v1.py": RELU.replace("clamp_", "clamp"),
    "relu___default/relu___default_implementation_v2.py": "import os\n"
    + RELU.replace("return", "os.abort()\n    return"),
    "relu___default/relu___default_implementation_v3.py": RELU.replace("return", "while True: pass\n   "),
    "mm/mm_implementation_v1.py": "def mm_kernel_impl(a, b):\n    return a @ b\n",
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    trace = tmp_path / "model.txt"
    trace.write_text(TRACE)
    monkeypatch.setenv(TRACES, str(trace))
    operators._traced.cache_clear()
    kernels = tmp_path / "kernels"
    for name, source in FILES.items():
        (kernels / name).parent.mkdir(parents=True, exist_ok=True)
        (kernels / name).write_text(source)
    (kernels / "README.md").write_text("none")
    return kernels


def test_versions_are_found_in_the_order_of_their_numbers(folder: Path) -> None:
    found = [(each.operator, each.name.rpartition("_")[2]) for each in versions_in(folder)]
    assert found == [
        *(("aten.add.Tensor", name) for name in ("v1", "v2", "v10")),
        ("aten.mm.default", "v1"),
        *(("aten.relu_.default", name) for name in ("v1", "v2", "v3")),
    ]


def test_a_function_is_called_as_the_operator_is() -> None:
    seen: list[object] = []

    def function(*args: object, **kwargs: object) -> None:
        seen.append((args, kwargs))

    as_aten("aten.add.Tensor", function, [1])("x", "y")
    as_aten("aten.add.Tensor", function, [2])("x", "y")
    as_aten("aten.sum.dim_IntList", function, [[1], False, None])("x")
    as_aten("aten.sum.dim_IntList", function, [[1], True, None])("x")
    assert seen == [
        (("x", "y"), {}),
        (("x", "y"), {"alpha": 2}),
        (("x", [1]), {}),
        (("x", [1], True), {}),
    ]
    module = load_module(kernel_source("aten.add.Tensor", ADD, "add__Tensor_kernel_impl"), {}, "kernel")
    x, y = torch.randn(3), torch.randn(3)
    assert torch.equal(module.ModelNew(2)(x, y), x + 2 * y)


def judged(name: str, evaluation: Evaluation, *, operator: str = "aten.add.Tensor") -> JudgedVersion:
    version = Version(operator=operator, name=name, path=None)
    return JudgedVersion(version=version, cases=["a", "b"], evaluation=evaluation)


def test_the_best_version_counts_and_what_crashed_is_a_failure() -> None:
    half = CaseResult(name="a", weight=1.0, held_out=False, evaluation=correct(9.0))
    crashed = Evaluation(status=Status.CRASHED, cases=(half,))
    best = best_of(
        [
            judged("v1", crashed),
            judged("v2", correct(1.5)),
            judged("v3", correct(3.0)),
            judged("v1", Evaluation(status=Status.TIMEOUT), operator="aten.mm.default"),
            judged("v2", crashed, operator="aten.mm.default"),
        ]
    )
    assert {name: each.version.name for name, each in best.items()} == {
        "aten.add.Tensor": "v3",
        "aten.mm.default": "v2",
    }
    found = measures(best)
    assert found["correct"].value == 0.5
    assert found["geometric mean"].value == pytest.approx(3.0)
    assert (found["perf@1"].value, found["perf@2"].value) == (0.5, 0.5)


def test_cases_bound_by_overhead_are_separated() -> None:
    small, large = correct(0.5, kernel_ms=0.004), correct(3.0)
    cases = [
        CaseResult(name="a", weight=1.0, held_out=False, evaluation=small),
        CaseResult(name="b", weight=1.0, held_out=False, evaluation=large),
        CaseResult(name="c", weight=0.0, held_out=False, evaluation=small),
    ]
    found = replace(correct(1.2), cases=tuple(cases))
    assert bound_cases(found, 0.0011) == ["a"]
    assert speedup_beyond(found, 0.0011) == pytest.approx(3.0)
    assert speedup_beyond(found, 0.0009) == pytest.approx(1.5**0.5)
    assert speedup_beyond(found, 10.0) == 0.0
    alone = replace(correct(0.5), cases=(cases[0],))
    best = best_of([judged("v1", found), judged("v1", alone, operator="aten.mm.default")])
    means = measures(best, 0.0011)
    assert means["geometric mean"].value == pytest.approx(0.6**0.5)
    assert means["without overhead"].value == pytest.approx(3.0)


def test_without_times_there_is_the_share_of_correct_operators_alone() -> None:
    right, wrong = Evaluation(status=Status.CORRECT), Evaluation(status=Status.INCORRECT)
    best = best_of([judged("v1", right), judged("v1", wrong, operator="aten.mm.default")])
    found = measures(best)
    assert list(found) == ["correct"] and found["correct"].value == 0.5


@pytest.mark.slow
def test_every_version_is_scored_to_the_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = [f"operators={folder}", "suite=operators/traced", "problem.libraries=any", *QUICK]
    assert score.main(call) == 0
    said = capsys.readouterr().out
    assert "left out: aten.mm.default: the suite has no such operator" in said
    rows = list(csv.DictReader((folder / "operator_cases.csv").read_text().splitlines()))
    scores = json.loads((folder / "operator_scores.json").read_text())
    assert scores["operators"]["aten.add.Tensor"]["version"].endswith("v2")
    assert scores["operators"]["aten.add.Tensor"]["status"] == "correct"
    assert scores["operators"]["aten.add.Tensor"]["stages"]["edges"] == "passes"
    assert scores["operators"]["aten.relu_.default"]["pass"] == 0
    assert scores["measures"]["correct"]["value"] == 0.5
    assert scores["cases that pass, by type"] == {"float32": "2 of 3"}
    assert scores["statuses"] == {
        "incorrect": 2,
        "correct": 1,
        "compile_error": 1,
        "crashed": 1,
        "timeout": 1,
    }
    assert {each["version"] for each in rows if each["status"] == "correct" and each["speedup"]} >= {
        "add__Tensor_implementation_v2"
    }
    versions = list(csv.DictReader((folder / "operators.csv").read_text().splitlines()))
    assert len(versions) == 6
    (relu,) = [each for each in versions if each["version"] == "relu___default_implementation_v1"]
    assert (relu["pass"], relu["speedup"]) == ("0", "")
    (fastest,) = [each for each in versions if each["version"] == "add__Tensor_implementation_v2"]
    assert (fastest["status"], fastest["pass"], fastest["timed"]) == ("correct", fastest["cases"], "2")
    assert relu["cause"] == scores["operators"]["aten.relu_.default"]["cause"] != ""
    assert fastest["cause"] == scores["operators"]["aten.add.Tensor"]["cause"] == ""
    assert float(fastest["low"]) <= float(fastest["speedup"]) <= float(fastest["high"])
    assert score.main(call) == 0, "what is kept is not evaluated again"


@pytest.mark.slow
@pytest.mark.parametrize("done", [0, 2])
def test_evaluations_before_an_interrupt_are_in_the_tables(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], done: int
) -> None:
    asked: list[Version] = []

    async def evaluated(pool: Any, problem: Any, version: Version, *_: Any) -> Evaluation:
        asked.append(version)
        if len(asked) > done:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(60)
        return correct(2.0)

    async def floor(*_: Any) -> float:
        return 0.0

    monkeypatch.setattr(operator_score, "_evaluate", evaluated)
    monkeypatch.setattr(operator_score, "_floor", floor)
    assert score.main([f"operators={folder}", "suite=operators/traced", *QUICK]) == 130
    said = capsys.readouterr().out
    assert (folder / "operators.csv").exists() == (done > 0)
    if done:
        assert "2 of 6 versions: repeat the call to continue" in said
        rows = list(csv.DictReader((folder / "operators.csv").read_text().splitlines()))
        assert [each["version"] for each in rows] == [each.name for each in asked[:2]]


@pytest.mark.slow
def test_an_operator_that_cannot_be_opened_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = operators.load_operator

    def opened(name: str, **how: Any) -> Problem:
        if name.endswith("relu_.default") or "bfloat15" in str(how):
            raise ValueError("it cannot be made")
        return plain(name, **how)

    monkeypatch.setattr(operators, "load_operator", opened)
    only = "only=[aten.relu_.default,aten.add.Tensor]"
    call = [f"operators={folder}", "suite=operators/traced", only, *QUICK]
    assert score.main([*call, "problem.libraries=any"]) == 1
    said = capsys.readouterr().out
    assert "left out: aten.relu_.default: it cannot be made" in said
    assert "aten.add.Tensor add__Tensor_implementation_v2: correct" in said
    assert score.main([*call, "problem.dtype=bfloat15"]) == 2
    assert "it cannot be made" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    "rules",
    [
        {},
        {"types": ["float32"], "most_cases": 1, "floor": False, "tolerance": "kernelbench"},
        {"sizes": {"call": "((T([4], f32), T([4], f32)), {})", "of_another": 3}},
    ],
)
def test_operators_are_opened_as_any_problem_is(rules: dict[str, Any]) -> None:
    given = OmegaConf.structured(RulesConfig(**rules))
    open_operator = operator_opener("operators/traced", device="cpu", rules=given)
    for operator in ("aten.add.Tensor", "aten.relu_.default"):
        known = open_problem(f"operators/traced/{operator}", device="cpu", rules=given)
        assert open_operator(operator) == known and open_operator(operator).id == known.id
    with pytest.raises(UsageError, match=r"operators/traced has no aten\.mul\.Tensor"):
        open_operator("aten.mul.Tensor")


@pytest.mark.slow
def test_pytorch_itself_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    call = ["operators=aten", "suite=operators/traced", "only=[aten.relu_.default]", *QUICK]
    assert score.main(call) == 0
    assert "aten.relu_.default aten: correct on 1 cases" in capsys.readouterr().out
    assert score.main([*call, "problem.timed=false"]) == 0
    said = capsys.readouterr().out
    assert "aten.relu_.default aten: correct, 1 of 1 cases pass" in said
    assert "geometric mean" not in said and "overhead" not in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ([], "exactly one folder is needed"),
        (["operators=nowhere", "suite=operators/traced"], "operators=nowhere has no files like"),
        (["operators=aten", "suite=operators/traced", "only=[aten.relu]"], "has no problem aten.relu"),
        (["operators=aten", "suite=operators/none"], "unknown suite operators/none"),
        (
            ["operators=aten", "suite=shipped"],
            "suite=shipped has no operators; choose one like",
        ),
    ],
)
def test_bad_calls_are_one_line(call: list[str], complaint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert score.main([*call, "device=cpu"]) == 2
    assert complaint in capsys.readouterr().err
