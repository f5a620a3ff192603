"""A search without barriers: asked whenever there is room, and with decisions that repeat."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluators.base.usage_error import UsageError
from search.engine.steady_state import view_of
from search.protocols import View
from search.records.events import ExpansionAsked, IdeaProposed, RoundClosed, RunStarted, VariantEvaluated
from search.records.journal import Journal, replay
from search.records.run_state import RunState
from search.records.tree import Expansion, Seed
from search.strategies.idea_branching import IdeaBranching
from tests.search.engine_fakes import cut, stopped
from tests.search.fakes import FakeEvaluator, build, contents, correct, kernel, search, state_of


def steady(ideas: int = 4, branch: int = 2, keep: int = 2) -> IdeaBranching:
    return IdeaBranching(ideas=ideas, branch=branch, keep=keep, synchronous=False)


class Chain:
    """Builds on the last variant, and waits for it."""

    ideas, synchronous = 3, False

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        if view.pending:
            return None
        best = view.tree.best(1)
        return Expansion(seed=best[0].seed if best else None, ideas=1, variants=1)


def test_a_round_does_not_wait_for_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path, strategy=steady(), rounds=4)
    assert finished.reason == "rounds"
    events = replay(path)
    closed = [event.round for event in events if isinstance(event, RoundClosed)]
    assert closed == [1, 2, 3, 4]
    state = state_of(path)
    assert Counter(idea.round for idea in state.tree.ideas.values()) == dict.fromkeys(closed, 4)
    assert all(variant.evaluation is not None for variant in state.tree.variants.values())
    first_close = next(i for i, event in enumerate(events) if isinstance(event, RoundClosed))
    asked_before = [e.round for e in events[:first_close] if isinstance(e, ExpansionAsked)]
    assert max(asked_before) > 1, "it waited at the end of the round"


def test_a_chain_builds_on_each_verdict(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert search(path, strategy=Chain(), rounds=3).reason == "rounds"
    open_variants = 0
    for event in replay(path):
        if isinstance(event, ExpansionAsked):
            assert open_variants == 0
            open_variants = 1
        open_variants -= isinstance(event, VariantEvaluated)
    assert len(state_of(path).tree.ideas) == 9


@pytest.mark.parametrize(
    "strategy", [steady(), steady(ideas=3, keep=5), Chain()], ids=["beam", "wide", "chain"]
)
def test_the_journal_has_what_repeats_the_decisions(tmp_path: Path, strategy: Any) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, strategy=strategy, rounds=4, seed=3)
    state, entries, decisions = RunState(), (), 0
    for event in replay(path):
        if isinstance(event, RunStarted):
            entries = event.entries
        if isinstance(event, ExpansionAsked) and not event.as_it_is:
            view = view_of(state, strategy.ideas, entries, lambda kernel: True)
            asked = strategy.ask(view, random.Random(f"3/{event.number}/ask"))
            assert asked is not None
            assert (asked.seed.id if asked.seed else "", view.round) == (event.seed, event.round)
            decisions += 1
        state.apply(event)
    assert decisions > 8


@pytest.mark.slow
def test_a_run_resumes_wherever_it_was_cut(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    search(whole, strategy=steady(ideas=3), rounds=3)
    lines = len(whole.read_text().splitlines())
    for number in range(1, lines):
        path = tmp_path / f"{number}.jsonl"
        before = cut(whole, path, number)
        assert search(path, strategy=steady(ideas=3), rounds=3).reason == "rounds"
        after = state_of(path)
        assert set(before.tree.variants) <= set(after.tree.variants)
        assert after.tree.rounds_closed == 3
        assert Counter(idea.round for idea in after.tree.ideas.values()) == {1: 3, 2: 3, 3: 3}
        judged = [e.variant.id for e in replay(path) if isinstance(e, VariantEvaluated)]
        assert len(judged) == len(set(judged)) == len(after.tree.variants)


def test_a_stop_ends_it_cleanly_and_it_resumes(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    assert stopped(path, kind=IdeaProposed, n=6, strategy=steady(), rounds=4).reason == "interrupted"
    assert search(path, strategy=steady(), rounds=4).reason == "rounds"
    assert Counter(idea.round for idea in state_of(path).tree.ideas.values()) == {1: 4, 2: 4, 3: 4, 4: 4}


@pytest.mark.parametrize("evaluations", [1, 5, 13])
def test_it_keeps_to_the_budget(tmp_path: Path, evaluations: int) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path, strategy=steady(), rounds=None, evaluations=evaluations)
    assert finished.reason == "evaluations"
    assert state_of(path).evaluations == evaluations


def test_the_librarys_kernels_are_measured_first(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    entries = [Seed(id=f"e{i}", kernel=kernel(f"entry {i}"), evaluation=correct(1.0 + i)) for i in range(2)]
    search(path, strategy=steady(), rounds=2, entries=entries)
    asked = [event for event in replay(path) if isinstance(event, ExpansionAsked)]
    assert [(each.seed, each.as_it_is) for each in asked[:2]] == [("e0", True), ("e1", True)]
    assert not any(each.as_it_is for each in asked[2:])
    assert sum(each.ideas for each in asked[2:]) == 8


class Mute:
    """Has a few ideas, and then none."""

    def __init__(self, proposer: Any, ideas: int) -> None:
        self._proposer, self._left = proposer, ideas

    def __getattr__(self, name: str) -> Any:
        return getattr(self._proposer, name)

    async def propose(self, *given: Any) -> Any:
        found = await self._proposer.propose(*given)
        found = found[: self._left]
        self._left -= len(found)
        return found


def test_it_ends_when_nobody_has_ideas_any_more(tmp_path: Path) -> None:
    from tests.search.fakes import FakeProposer

    path = tmp_path / "journal.jsonl"
    finished = search(path, strategy=steady(), proposer=Mute(FakeProposer(), 6), rounds=50)
    assert finished.reason == "exhausted"
    assert len(state_of(path).tree.ideas) == 6


def test_it_does_not_end_before_it_has_seen_the_last_verdict(tmp_path: Path) -> None:
    """The reference gives one idea; before that has its verdict, there is nothing else to build on."""
    from tests.search.fakes import FakeProposer

    class One(FakeProposer):
        async def propose(self, problem: Any, expansion: Expansion, history: Any, rng: random.Random) -> Any:
            if expansion.seed is None and self.calls:
                return []
            return await super().propose(problem, expansion, history, rng)

    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(verdict=lambda kernel: correct(1.5), delay_s=0.05)
    finished = search(path, strategy=steady(branch=1), proposer=One(), evaluator=evaluator, rounds=3)
    assert finished.reason == "rounds"


@pytest.mark.parametrize("first", [True, False])
def test_a_run_keeps_to_its_kind_of_rounds(tmp_path: Path, first: bool) -> None:
    path = tmp_path / "journal.jsonl"
    shape: dict[str, Any] = {"ideas": 2, "branch": 1, "keep": 1}
    search(path, strategy=IdeaBranching(**shape, synchronous=first), rounds=1)
    with pytest.raises(UsageError, match=f"was started with strategy.synchronous={str(first).lower()}"):
        search(path, strategy=IdeaBranching(**shape, synchronous=not first), rounds=2)


def test_what_it_finds_does_not_depend_on_who_watches(tmp_path: Path) -> None:
    """With an evaluator that answers in order, the same seed gives the same run."""
    for name in ("one", "two"):
        with Journal(tmp_path / name) as journal:
            engine = build(journal, strategy=steady(), rounds=3, evaluator=FakeEvaluator(), outstanding=1)
            asyncio.run(engine.run())
    assert contents(state_of(tmp_path / "one").tree) == contents(state_of(tmp_path / "two").tree)
