"""Runs that go on from what their journal holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evaluators.base.usage_error import UsageError
from evaluators.records.problem import Problem
from search.records.events import IdeaProposed, RunStarted
from search.records.journal import replay
from tests.search.engine_fakes import cut
from tests.search.fakes import FakeEvaluator, FakeProposer, contents, search, state_of


@pytest.mark.core
@pytest.mark.slow
@pytest.mark.parametrize(("pool", "limit"), [(10**9, None), (12, None), (12, 10), (10**9, 19)])
def test_a_run_cut_anywhere_resumes_to_the_same_tree(tmp_path: Path, pool: int, limit: int | None) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    finished = search(
        path,
        evaluations=limit,
        proposer=FakeProposer(delay_s=0.002, pool=pool),
        evaluator=FakeEvaluator(delay_s=0.002),
    )
    expected = state_of(path)
    total = len(path.read_text().splitlines())
    assert total > 25
    for lines in range(total + 1):
        before = cut(path, part, lines)
        evaluator, proposer = FakeEvaluator(delay_s=0.0005), FakeProposer(delay_s=0.0005, pool=pool)
        again = search(part, evaluations=limit, evaluator=evaluator, proposer=proposer)
        after = state_of(part)
        assert contents(after.tree) == contents(expected.tree), f"cut after line {lines}"
        assert (again.reason, again.best, again.confirmed) == (
            finished.reason,
            finished.best,
            finished.confirmed,
        )
        assert after.evaluations == expected.evaluations
        assert not set(evaluator.seen) & set(before.verdicts), "evaluated twice"
        assert not before.implemented & set(proposer.implemented)


def test_a_finished_run_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path)
    size = path.stat().st_size
    evaluator = FakeEvaluator()
    assert search(path, evaluator=evaluator) == finished
    assert path.stat().st_size == size
    assert not evaluator.confirmed


@pytest.mark.slow
def test_a_finished_run_resumes_with_more_rounds(tmp_path: Path) -> None:
    path, straight = tmp_path / "journal.jsonl", tmp_path / "straight.jsonl"
    search(path, rounds=2)
    assert search(path, rounds=4).reason == "rounds"
    search(straight, rounds=4)
    assert contents(state_of(path).tree) == contents(state_of(straight).tree)


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("seed", {"seed": 1}),
        ("problem", {"problem": Problem(name="other", source="class Model: 2")}),
        ("other strategy settings", {"keep": 1}),
    ],
)
def test_another_search_is_not_mixed_in(tmp_path: Path, what: str, other: dict[str, Any]) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    search(path)
    proposed = [i for i, e in enumerate(replay(path), 1) if isinstance(e, IdeaProposed) and e.idea.round == 2]
    cut(path, part, proposed[-1])
    with pytest.raises(UsageError, match=what):
        search(part, **other)


@pytest.mark.parametrize(
    ("now", "kept"),
    [
        ({"device": "a CPU", "torch": "2.13", "copy_gb_per_s": "58"}, "34"),
        ({"device": "another CPU", "torch": "2.13", "copy_gb_per_s": "58"}, "58"),
        ({"device": "a CPU", "torch": "2.14", "copy_gb_per_s": "58"}, "58"),
    ],
)
def test_the_rates_of_a_device_stay_as_earlier_prompts_stated_them(
    tmp_path: Path, now: dict[str, str], kept: str
) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, rounds=1, environment={"device": "a CPU", "torch": "2.13", "copy_gb_per_s": "34"})
    search(path, rounds=2, environment=now)
    starts = [each.environment for each in replay(path) if isinstance(each, RunStarted)]
    assert starts[-1] == {**now, "copy_gb_per_s": kept}
