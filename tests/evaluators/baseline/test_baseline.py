"""Baselines: which times are stored, and which are measured again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evaluators.baseline import __main__ as baseline
from evaluators.records.evaluation import Evaluation, Status, Timing
from evaluators.records.problem import Problem
from evaluators.records.timing import is_steady

STEADY = (2.0, 2.1, 2.0, 1.9, 2.0, 2.0, 2.1)
UNSTEADY = (2.0, 2.0, 2.0, 4.1, 2.0, 8.0, 3.0)


def timing_of(*eager_ms: float) -> Timing:
    """With these samples of eager."""
    return Timing(
        kernel_ms=2.0,
        eager_ms=2.0,
        speedup=1.0,
        speedup_low=0.9,
        speedup_high=1.1,
        kernel_samples_ms=(2.0,) * len(eager_ms),
        eager_samples_ms=eager_ms,
    )


class FakePool:
    """Finds these samples of eager, one after the other."""

    def __init__(self, *samples: tuple[float, ...]) -> None:
        self.samples = list(samples)

    async def evaluate(self, problem: Problem, kernel: object, *, thorough: bool) -> Evaluation:
        """The next."""
        timing = replace(timing_of(*self.samples.pop(0)), compile_ms=1.5 if thorough else None)
        return Evaluation(status=Status.CORRECT, timing=timing)


def measured(pool: FakePool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit status of the command, with such a pool."""

    async def for_each_problem(suite: object, config: object, settings: object, measure: Any) -> None:
        await measure(pool, "level1/softmax")

    monkeypatch.setattr(baseline, "for_each_problem", for_each_problem)
    monkeypatch.setattr("sys.argv", ["baseline", "suite=shipped", f"out={folder}/out", "device=cpu"])
    return baseline.main()


def kept(folder: Path) -> dict[str, Any]:
    """The baselines of the file that was written."""
    body = json.loads((folder / "out" / "baseline_time_torch.json").read_text(encoding="utf-8"))
    return {name: each for level in body.values() for name, each in level.items()}


def test_times_are_steady_if_eagers_time_stays_the_same() -> None:
    assert is_steady(timing_of(*STEADY))
    assert not is_steady(timing_of(*UNSTEADY))
    assert is_steady(timing_of(*[2.0] * 10, 9.0))  # one outlier moves no median
    assert is_steady(timing_of(1.0, 9.0))  # too few to tell


@pytest.mark.slow
def test_times_that_are_not_steady_are_measured_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pool = FakePool(UNSTEADY, STEADY)
    assert measured(pool, tmp_path, monkeypatch) == 0
    assert not pool.samples and list(kept(tmp_path)) == ["softmax.py"]
    assert "times vary too much, not saved" in capsys.readouterr().out


@pytest.mark.slow
def test_times_that_vary_twice_are_left_for_another_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measured(FakePool(UNSTEADY, UNSTEADY, STEADY), tmp_path, monkeypatch) == 1
    assert not kept(tmp_path)
    assert measured(FakePool(STEADY), tmp_path, monkeypatch) == 0
    assert list(kept(tmp_path)) == ["softmax.py"]
    assert measured(FakePool(), tmp_path, monkeypatch) == 0  # what is kept is not measured again
