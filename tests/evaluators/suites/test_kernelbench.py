"""Problems of KernelBench by number and name, out of a clone or the data set."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import pytest

from evaluators.app.command import build, compose_config
from evaluators.base.usage_error import UsageError
from evaluators.evaluate.__main__ import EvaluateConfig
from evaluators.records.problem import Problem
from evaluators.reference.loading import BadReference
from evaluators.suites import kernelbench
from evaluators.suites.kernelbench import LEVELS, ROOT, find, load_kernelbench_problem, references
from evaluators.suites.suite import Listed, SuiteEntry, SuiteMissing
from tests.evaluators.suites.clone import make_clone


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(ROOT, str(make_clone(tmp_path)))
    return tmp_path


def composed(*overrides: str) -> Problem:
    config = compose_config(EvaluateConfig, [*overrides, "kernel=none"])
    problem: Problem = build(config.problem, device="cpu")
    return problem


def test_a_problem_is_found_by_number_name_and_file(clone: Path) -> None:
    names = ("level1/23", "level1/23_Softmax", "level1/Softmax", "kernelbench/level1/23_Softmax.py")
    assert {find(name).problem for name in names} == {"kernelbench/level1/23_Softmax"}
    assert find("level2/Scaled_sum").name == "3_Scaled_sum_"
    assert [each.number for each in references(1)] == [1, 2, 23]


@pytest.mark.slow
def test_the_command_line_names_one(clone: Path) -> None:
    problem = composed("problem=kernelbench/level1/23", "problem.sizes.size=8", "problem.inputs=original")
    assert (problem.name, problem.tolerance) == ("kernelbench/level1/23_Softmax", "kernelbench_v02")
    assert (problem.overrides, problem.inputs) == ({"size": 8}, "original")
    assert composed("problem=kernelbench", "problem.name=kernelbench/level1/23").id != problem.id


@pytest.mark.slow
@pytest.mark.parametrize(
    ("problem", "says"),
    [
        ("kernelbench/level1/Softmx", "did you mean 23_Softmax?"),
        ("kernelbench/level1/99", "it has 1 to 23"),
        ("kernelbench/level7/1", "named like kernelbench/level1/23"),
        ("kernelbench/level3/1", "it has no folder KernelBench/level3"),
        ("kernelbanch/level1/1", "did you mean kernelbench?"),
    ],
)
def test_an_unknown_problem_costs_one_line(clone: Path, problem: str, says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("?", r"\?")) as error:
        composed(f"problem={problem}")
    assert "\n" not in str(error.value)


def test_the_dataset_replaces_a_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {
        "level_1": [
            {"code": "two", "level": 1, "name": "2_Two", "problem_id": 2},
            {"code": "one", "level": 1, "name": "1_One", "problem_id": 1},
        ]
    }
    module = types.ModuleType("datasets")
    module.load_dataset = lambda name, split: rows[split]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.delenv(ROOT, raising=False)
    kernelbench._of_dataset.cache_clear()
    try:
        assert [(each.name, each.source) for each in references(1)] == [("1_One", "one"), ("2_Two", "two")]
        with pytest.raises(SuiteMissing, match="cannot be downloaded"):
            references(2)
    finally:
        kernelbench._of_dataset.cache_clear()


def test_suites_name_their_problems(clone: Path) -> None:
    level1 = kernelbench.KernelBench("kernelbench/level1", [1])
    assert [each.problem for each in level1.entries()] == [
        "kernelbench/level1/1_Relu",
        "kernelbench/level1/2_Zeros",
        "kernelbench/level1/23_Softmax",
    ]
    assert kernelbench.Representative("x")._numbers == kernelbench.REPRESENTATIVE
    some = kernelbench.KernelBench("some", [1, 2], {1: [23], 2: [3]})
    assert [each.problem.rpartition("/")[2] for each in some.entries()] == ["23_Softmax", "3_Scaled_sum_"]
    assert [*Listed("two", {"a": 1.0, "b": 3.0}).entries()] == [
        SuiteEntry(problem="a", weight=1.0),
        SuiteEntry(problem="b", weight=3.0),
    ]
    with pytest.raises(ValueError, match="has no problems"):
        Listed("none", [])
    with pytest.raises(ValueError, match="must be positive"):
        Listed("nothing", {"a": 0.0})
    with pytest.raises(ValueError, match="has the levels 1 to 4"):
        kernelbench.KernelBench("five", [5])


def test_training_has_the_problems_with_gradients(clone: Path) -> None:
    level1 = clone / "KernelBench" / "level1"
    (level1 / "51_Argmax.py").write_text(
        (level1 / "1_Relu.py").read_text().replace("torch.relu(x)", "x.argmax(1)")
    )
    kernelbench._of_clone.cache_clear()
    try:
        names = [each.problem for each in kernelbench.Training("kernelbench/training", [1, 2]).entries()]
    finally:
        kernelbench._of_clone.cache_clear()
    numbers = [name.removeprefix("kernelbench/training/") for name in names]
    assert numbers == ["level1/1_Relu", "level1/2_Zeros", "level1/23_Softmax", "level2/3_Scaled_sum_"]
    trained, plain = (load_kernelbench_problem(each, backward=False) for each in (names[2], "level1/23"))
    assert (trained.name, trained.backward) == (names[2], True)
    assert (plain.name, plain.backward) == ("kernelbench/level1/23_Softmax", False)
    assert load_kernelbench_problem("training/level1/23", dtype="float32").name == names[2]
    assert load_kernelbench_problem("level1/23", backward=True).backward


@pytest.mark.slow
def test_the_command_line_names_one_with_its_backward_pass(clone: Path) -> None:
    problem = composed("problem=kernelbench/training/level1/23")
    assert problem.backward and problem.name == "kernelbench/training/level1/23_Softmax"


def test_an_invalid_reference_costs_one_line(clone: Path) -> None:
    file = clone / "KernelBench" / "level2" / "9_Broken.py"
    file.write_text("import torch\n")
    with pytest.raises(BadReference, match="defines no Model"):
        load_kernelbench_problem("kernelbench/level2/9")


@pytest.mark.skipif(not os.environ.get(ROOT), reason=f"{ROOT} names no clone")
def test_all_of_a_real_clone_load() -> None:
    counts = {}
    for level in LEVELS:
        problems = [load_kernelbench_problem(each.problem, dtype="float32") for each in references(level)]
        counts[level] = len({each.name for each in problems})
    assert counts == {1: 100, 2: 100, 3: 50, 4: 20}


def test_a_file_that_is_no_text_costs_only_its_own_problem(clone: Path) -> None:
    folder = clone / "KernelBench" / "level1"
    (folder / "7_Latin.py").write_bytes("# Länge\nimport torch\n".encode("latin-1"))
    declared = "# coding: latin-1\n# Länge\n" + (folder / "1_Relu.py").read_text()
    (folder / "8_Declared.py").write_bytes(declared.encode("latin-1"))
    kernelbench._of_clone.cache_clear()
    try:
        assert [each.number for each in references(1)] == [1, 2, 7, 8, 23]
        assert "# Länge" in kernelbench.load_kernelbench_problem("kernelbench/level1/8").source
        with pytest.raises(BadReference, match=r"7_Latin\.py cannot be read: it is not text in utf-8 \(byte"):
            kernelbench.load_kernelbench_problem("kernelbench/level1/7")
    finally:
        kernelbench._of_clone.cache_clear()
