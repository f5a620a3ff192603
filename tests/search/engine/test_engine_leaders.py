"""The fastest kernels of a run are measured together before one of them is chosen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from search.records.budget import Budget
from search.records.events import LeadersCompared, RoundClosed, VariantStage
from search.records.journal import replay
from search.records.ranking import MEDIAN
from tests.search.engine_fakes import Nosy, cut, stopped
from tests.search.fakes import (
    Clock,
    FakeEvaluator,
    Recorder,
    contents,
    correct,
    failed,
    in_turns,
    search,
    state_of,
)


class Lucky(FakeEvaluator):
    """Single evaluations of every kernel overlap those of all others; together they are told apart. Those of
    the slowest are the luckiest."""

    def __init__(self, *, together: Callable[[Kernel], Evaluation] | None = None, delay_s: float = 0) -> None:
        super().__init__(verdict=self.alone, delay_s=delay_s)
        self.together = together or (lambda kernel: correct(truth(kernel)))

    @staticmethod
    def alone(kernel: Kernel) -> Evaluation:
        timing = correct(9 - truth(kernel)).timing
        assert timing is not None
        return replace(correct(), timing=replace(timing, speedup_low=0.5, speedup_high=20.0))

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        self.compared.append([kernel.id for kernel in kernels])
        await asyncio.sleep(self.delay_s)
        return [in_turns(self.together(kernel)) for kernel in kernels]


def truth(kernel: Kernel) -> float:
    """The speedup of a kernel, 2 to 4."""
    return 2 + int(kernel.id, 16) % 1009 / 504.5


def compared(path: Path) -> list[LeadersCompared]:
    return [event for event in replay(path) if isinstance(event, LeadersCompared)]


def test_the_leaders_are_measured_together_before_a_round_and_before_the_end(tmp_path: Path) -> None:
    path, evaluator, recorder = tmp_path / "journal.jsonl", Lucky(), Recorder()
    finished = search(path, rounds=2, ideas=1, branch=4, evaluator=evaluator, observers=[recorder])
    state, events = state_of(path), replay(path)
    first, second = compared(path)
    (variants,) = [[v for v in state.tree.variants.values() if v.round == 1]]
    assert {v.id for v in first.variants} == {v.id for v in variants}
    fastest_of_first = max(variants, key=lambda v: truth(v.kernel))
    assert state.tree.ideas[[*state.tree.ideas][1]].parent == fastest_of_first.id, "it seeds the next round"
    assert fastest_of_first.id in {v.id for v in second.variants}, "with those that are new"
    assert len(second.variants) == 5
    assert finished.best is not None
    assert finished.best.kernel == max((v.kernel for v in state.tree.variants.values()), key=truth)
    assert finished.best.evaluation in second.evaluations
    assert state.evaluations == 8, "comparisons are no evaluations"
    assert state.device_s == (8 + 4 + 5 + 1) * 0.25
    kinds = [type(event) for event in events]
    assert kinds.index(LeadersCompared) == kinds.index(RoundClosed) + 1
    assert [e for e in recorder.events if not isinstance(e, VariantStage)] == events


def test_leaders_can_be_compared_at_the_end_alone(tmp_path: Path) -> None:
    path, evaluator = tmp_path / "journal.jsonl", Lucky()
    finished = search(path, rounds=2, ideas=1, branch=4, evaluator=evaluator, compares_each_round=False)
    assert finished.best is not None
    kinds = [type(event) for event in replay(path)]
    assert len(compared(path)) >= 1
    last_closed = len(kinds) - 1 - kinds[::-1].index(RoundClosed)
    assert kinds.index(LeadersCompared) > last_closed


def test_a_leader_that_is_clear_is_not_measured_again(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(verdict=lambda kernel: correct(2 ** (int(kernel.id, 16) % 1009)))
    search(tmp_path / "journal.jsonl", evaluator=evaluator, ideas=1, branch=3)
    assert evaluator.compared == []


@pytest.mark.parametrize("most", [0, 1, 2])
def test_a_search_may_be_told_to_compare_less(tmp_path: Path, most: int) -> None:
    evaluator = Lucky(together=lambda kernel: correct())  # all alike, which asks for three sessions
    path = tmp_path / "journal.jsonl"
    search(path, rounds=1, ideas=1, branch=4, evaluator=evaluator, comparisons=most)
    assert len(compared(path)) == len(evaluator.compared) == most


@pytest.mark.parametrize(("seconds", "sessions"), [(0.05, 3), (0.25, 2), (10.0, 1)])
def test_comparisons_take_little_more_of_the_device_than_the_search(
    tmp_path: Path, seconds: float, sessions: int
) -> None:
    evaluator = Lucky(together=lambda kernel: replace(correct(), device_s=seconds))
    path = tmp_path / "journal.jsonl"
    search(path, rounds=1, ideas=1, branch=4, evaluator=evaluator)
    assert len(compared(path)) == sessions


@pytest.mark.slow
def test_a_run_with_compared_leaders_resumes_from_anywhere(tmp_path: Path) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    search(path, rounds=3, evaluator=Lucky())
    assert compared(path)
    expected = contents(state_of(path).tree)
    for lines in range(1, len(path.read_text().splitlines()) + 1):
        cut(path, part, lines)
        search(part, rounds=3, evaluator=Lucky())
        assert contents(state_of(part).tree) == expected, f"cut after line {lines}"
        assert [e.by_kernel for e in compared(part)] == [e.by_kernel for e in compared(path)]


def test_a_comparison_that_fails_leaves_the_lower_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "journal.jsonl"
    evaluator = Lucky(together=lambda kernel: failed(Status.INFRASTRUCTURE_ERROR))
    finished = search(path, rounds=2, ideas=1, branch=4, evaluator=evaluator)
    assert (finished.reason, compared(path)) == ("rounds", [])
    assert finished.best == state_of(path).tree.best()[0]
    assert len(evaluator.compared) == len({tuple(each) for each in evaluator.compared}), "asked once"
    assert "could not be compared" in caplog.text


def test_after_a_stop_and_without_time_nothing_is_compared(tmp_path: Path) -> None:
    evaluator = Lucky()
    finished = stopped(tmp_path / "stopped.jsonl", kind=RoundClosed, n=1, evaluator=evaluator)
    assert (finished.reason, evaluator.compared) == ("interrupted", [])
    clock = Clock()
    budget = Budget(rounds=5, seconds=100, clock=clock)
    late = Nosy(RoundClosed, 1, lambda: setattr(clock, "now_s", clock.now_s + 200))
    finished = search(tmp_path / "late.jsonl", budget=budget, evaluator=evaluator, observers=[late])
    assert (finished.reason, evaluator.compared) == ("seconds", [])
    assert finished.confirmed is not None


def test_an_older_journal_resumes_ranking_by_the_median(tmp_path: Path) -> None:
    path, evaluator = tmp_path / "journal.jsonl", Lucky()
    search(path, rounds=1, evaluator=evaluator, ranking=MEDIAN)
    first, *rest = path.read_text().splitlines(keepends=True)
    started = json.loads(first)
    assert started.pop("ranking") == MEDIAN
    del started["version"]  # the ranking is in every journal that has a version
    path.write_text("".join([json.dumps(started) + "\n", *rest]))
    finished = search(path, rounds=2, evaluator=evaluator)
    assert evaluator.compared == []
    assert finished.best is not None
    variants = state_of(path).tree.variants.values()
    assert finished.best.kernel == min((v.kernel for v in variants), key=truth), "the luckiest"
