"""Rules for a suite reach each of its problems, whatever their types."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from evaluators.app.suite_config import SuiteProblems, all_of, chosen, open_problem
from evaluators.base.usage_error import UsageError
from evaluators.suites import operators
from evaluators.suites.traced.files import TRACES

TRACE = """
Operator: aten.relu.default
cnt: 3, ((T([8, 4], f32),), {})
cnt: 1, ((T([9, 4], f32),), {})
cnt: 1, ((T([8, 4], bf16),), {})
"""


@pytest.mark.slow
def test_numbers_lists_and_truth_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.txt").write_text(TRACE)
    monkeypatch.setenv(TRACES, str(tmp_path / "trace.txt"))
    operators._traced.cache_clear()
    rules = OmegaConf.create({"types": ["float32"], "most_cases": 1, "floor": False, "sizes": {}})
    problem = open_problem("operators/traced/aten.relu.default", device="cpu", rules=rules)
    assert [each.dtype for each in problem.cases] == ["float32"]
    assert problem.floor is False
    operators._traced.cache_clear()


@pytest.mark.parametrize(
    ("only", "wanted"),
    [
        (["2"], ["k/2_Standard_matmul"]),
        (["aten.div.Tensor"], ["o/aten.div.Tensor"]),
        (["aten.d*", "2_*"], ["k/2_Standard_matmul", "o/aten.div.Tensor", "o/aten.div.Tensor_mode"]),
        (["*div*", "k/23_Softmax"], ["k/23_Softmax", "o/aten.div.Tensor", "o/aten.div.Tensor_mode"]),
        ([], ["k/2_Standard_matmul", "k/23_Softmax", "o/aten.div.Tensor", "o/aten.div.Tensor_mode"]),
    ],
)
def test_problems_are_selected_by_number_name_and_pattern(only: list[str], wanted: list[str]) -> None:
    problems = ["k/2_Standard_matmul", "k/23_Softmax", "o/aten.div.Tensor", "o/aten.div.Tensor_mode"]
    assert chosen(problems, only, "here") == set(wanted)
    with pytest.raises(
        UsageError, match=r"here has no problem aten.div.Tenso; did you mean o/aten.div.Tensor\?"
    ):
        chosen(problems, [*only, "aten.div.Tenso"], "here")


@pytest.mark.slow
def test_a_bad_reference_stops_none_of_the_others(tmp_path: Path) -> None:
    bad = tmp_path / "bad (1).py"
    bad.write_text("import torch\n")
    config: Any = OmegaConf.create({"device": "cpu", "problem": {"sizes": {}}})
    problems = SuiteProblems(config)
    assert problems.open(str(bad)) is None
    with pytest.raises(UsageError, match="defines no Model"):
        problems.lines()
    assert problems.open("level1/softmax") is not None
    (line,) = problems.lines()
    assert line.startswith(f"{bad}: cannot be opened: {bad} defines no Model")


def test_the_first_error_of_some_jobs_ends_the_others_before_it_is_raised() -> None:
    ended: list[str] = []

    async def fails() -> None:
        await asyncio.sleep(0)
        raise UsageError("no such thing")

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("it")

    with pytest.raises(UsageError, match="no such thing"):
        asyncio.run(all_of([waits(), fails()]))
    assert ended == ["it"]
    asyncio.run(all_of([]))
