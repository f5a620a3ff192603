"""The rules that are set for a suite reach each of its problems, whatever they are."""

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from evaluators.suite_config import open_problem
from evaluators.suites import operators
from evaluators.suites.traces import TRACES

TRACE = """
Operator: aten.relu.default
cnt: 3, ((T([8, 4], f32),), {})
cnt: 1, ((T([9, 4], f32),), {})
cnt: 1, ((T([8, 4], bf16),), {})
"""


def test_numbers_lists_and_truth_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "trace.txt").write_text(TRACE)
    monkeypatch.setenv(TRACES, str(tmp_path / "trace.txt"))
    operators._traced.cache_clear()
    rules = OmegaConf.create({"types": ["float32"], "most_cases": 1, "floor": False, "sizes": {}})
    problem = open_problem("operators/traced/aten.relu.default", device="cpu", rules=rules)
    assert [each.dtype for each in problem.cases] == ["float32"]
    assert problem.floor is False
    operators._traced.cache_clear()
