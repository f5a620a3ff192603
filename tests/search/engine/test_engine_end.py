"""How a run ends: nothing left to try, a part that raises, and the confirmation of its best kernel."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel, Problem
from search.protocols import ProposerFailed
from search.records.events import BestConfirmed, RunFinished
from search.records.journal import replay
from search.records.tree import Idea
from tests.search.fakes import (
    FakeEvaluator,
    FakeProposer,
    contents,
    correct,
    failed,
    search,
    state_of,
)


def test_a_proposer_that_fails_ends_the_run_cleanly(tmp_path: Path) -> None:
    class GivesUp(FakeProposer):
        async def propose(
            self, problem: Problem, expansion: Any, history: Any, rng: random.Random
        ) -> list[Idea]:
            if expansion.round == 2:
                raise ProposerFailed("no model has an idea (one: access denied)")
            return await super().propose(problem, expansion, history, rng)

    proposer = GivesUp()
    finished = search(tmp_path / "journal.jsonl", proposer=proposer)
    assert finished.reason == "error: no model has an idea (one: access denied)"
    assert finished.confirmed is not None
    assert proposer.closed == 1


def test_no_ideas_left_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path, rounds=5, proposer=FakeProposer(last_round=2))
    assert finished.reason == "exhausted"
    assert finished.confirmed is not None
    assert state_of(path).tree.rounds_closed == 2


@pytest.mark.slow
@pytest.mark.parametrize("fail_at", range(1, 12))
def test_a_proposer_that_raises_ends_the_run_and_nothing_is_lost(
    tmp_path: Path, fail_at: int, caplog: pytest.LogCaptureFixture
) -> None:
    path, undisturbed = tmp_path / "journal.jsonl", tmp_path / "undisturbed.jsonl"
    proposer = FakeProposer(delay_s=0.002, fail_at=fail_at)
    finished = search(path, rounds=3, proposer=proposer, evaluator=FakeEvaluator(delay_s=0.002))
    assert finished.reason.startswith("error: ")
    assert "RuntimeError: the model is on strike" in finished.reason
    assert "on strike" in caplog.text
    assert isinstance(replay(path)[-1], RunFinished)
    assert all(v.evaluation for v in state_of(path).tree.variants.values() if v.round == 1 and fail_at > 6)
    search(undisturbed, rounds=3)
    assert search(path, rounds=3).reason == "rounds"
    assert contents(state_of(path).tree) == contents(state_of(undisturbed).tree)


def test_an_evaluator_that_raises_ends_the_run(tmp_path: Path) -> None:
    def broken(kernel: Kernel) -> Evaluation:
        raise KeyError("a bug of ours")

    path = tmp_path / "journal.jsonl"
    finished = search(path, evaluator=FakeEvaluator(verdict=broken))
    assert finished.reason.startswith("error: evaluate variant")
    assert finished.best is None


def test_a_confirmation_that_raises_leaves_the_best_unconfirmed(tmp_path: Path) -> None:
    def broken(kernel: Kernel) -> Evaluation:
        raise KeyError("a bug of ours")

    path = tmp_path / "journal.jsonl"
    finished = search(path, evaluator=FakeEvaluator(thorough=broken))
    assert finished.reason.startswith("error: confirm variant")
    assert finished.best == state_of(path).tree.best()[0]
    assert finished.confirmed is None
    finished = search(path)
    assert finished.reason == "rounds"
    assert finished.confirmed is not None


@pytest.mark.parametrize("holds", [0, 1, 2, 3])
def test_the_next_best_is_tried_when_the_best_does_not_hold(tmp_path: Path, holds: int) -> None:
    path = tmp_path / "journal.jsonl"
    bad: list[str] = []

    def thorough(kernel: Kernel) -> Evaluation:
        if len(bad) < holds:
            bad.append(kernel.id)
            return failed()
        return correct(3.0)

    evaluator = FakeEvaluator(thorough=thorough)
    finished = search(path, evaluator=evaluator)
    best = state_of(path).tree.best(3)
    if holds < 3:
        assert finished.best == best[holds]
        assert finished.confirmed == correct(3.0)
    else:
        assert (finished.best, finished.confirmed) == (None, None)
    assert evaluator.confirmed == [v.kernel.id for v in best[: holds + 1]]
    assert sum(isinstance(e, BestConfirmed) for e in replay(path)) == min(holds + 1, 3)


def test_nothing_correct_is_no_best_and_starts_from_the_reference_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(verdict=lambda kernel: failed(Status.CRASHED))
    finished = search(path, evaluator=evaluator)
    assert (finished.reason, finished.best, finished.confirmed) == ("rounds", None, None)
    assert {idea.parent for idea in state_of(path).tree.ideas.values()} == {""}
