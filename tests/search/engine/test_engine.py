"""A run that nothing disturbs: rounds, what a proposer is told, observers, equal kernels."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.evaluation import Evaluation, Status
from evaluators.records.problem import Kernel
from search.proposers.llm.proposer import LLMProposer
from search.protocols import View
from search.records.events import Event, ModelCalled, VariantEvaluated, VariantStage
from search.records.journal import replay
from search.records.model_calls import CallFailed, Cause, Limits, Question
from search.records.tree import Expansion
from tests.search.engine_fakes import scripted
from tests.search.fakes import (
    FakeEvaluator,
    FakeProposer,
    Recorder,
    ScriptedModel,
    contents,
    correct,
    failed,
    kernel,
    search,
    state_of,
    verdict_by_hash,
)


def test_a_run_makes_its_rounds(tmp_path: Path) -> None:
    recorder, evaluator = Recorder(), FakeEvaluator()
    path = tmp_path / "journal.jsonl"
    finished = search(path, rounds=3, evaluator=evaluator, observers=[recorder])
    state = state_of(path)
    assert finished.reason == "rounds"
    assert state.finished == finished
    assert state.tree.rounds_closed == 3
    assert len(state.tree.ideas) == 3 * 4
    assert len(state.tree.variants) == 3 * 4 * 3
    assert all(v.evaluation == verdict_by_hash(v.kernel) for v in state.tree.variants.values())
    assert finished.best == state.tree.best()[0]
    assert finished.confirmed is not None
    assert evaluator.confirmed == [finished.best.kernel.id]
    assert [e for e in recorder.events if not isinstance(e, VariantStage)] == replay(path)
    assert recorder.closed == 1


def test_ideas_stand_in_the_tree_as_the_engine_placed_them(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    search(path, rounds=2)
    tree = state_of(path).tree
    first, second = [[i for i in tree.ideas.values() if i.round == r] for r in (1, 2)]
    assert {idea.parent for idea in first} == {""}
    assert [idea.parent for idea in second] == [v.id for v in tree.before(2).best(2) for _ in range(3)][:4]
    assert all(v.parent == tree.ideas[v.idea].parent for v in tree.variants.values())


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, 17, 25])
@pytest.mark.parametrize("pool", [20, 10**9])
def test_the_order_of_completion_does_not_matter(tmp_path: Path, pool: int, limit: int | None) -> None:
    found = []
    for i, delay_s in enumerate([0, 0.004, 0.004, 0.004]):
        path = tmp_path / f"{i}.jsonl"
        search(
            path,
            evaluations=limit,
            proposer=FakeProposer(delay_s=delay_s, pool=pool),
            evaluator=FakeEvaluator(delay_s=delay_s),
            outstanding=5,
        )
        found.append(contents(state_of(path).tree))
    assert all(contents == found[0] for contents in found)


def test_another_seed_is_another_search(tmp_path: Path) -> None:
    for seed in (0, 1):
        search(tmp_path / f"{seed}.jsonl", seed=seed, rounds=1)
    one, other = (state_of(tmp_path / f"{seed}.jsonl").tree for seed in (0, 1))
    assert not set(one.variants) & set(other.variants)


def test_a_proposer_sees_closed_rounds_and_this_rounds_ideas(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    proposer = FakeProposer()
    search(path, rounds=2, proposer=proposer)
    tree = state_of(path).tree
    assert len(proposer.histories) == 3
    assert proposer.histories[0] == []
    assert proposer.histories[1] == tree.before(2).history()
    *past, last_of_three = proposer.histories[2][:-2], proposer.histories[2][-1]
    assert past == [tree.before(2).history() + proposer.histories[2][4:5]]
    assert last_of_three.idea.round == 2
    assert (last_of_three.best, last_of_three.variants) == (None, ())


def test_without_history_a_proposer_sees_nothing(tmp_path: Path) -> None:
    proposer = FakeProposer()
    search(tmp_path / "journal.jsonl", proposer=proposer, history="none")
    assert len(proposer.histories) > 3
    assert not any(proposer.histories)


def test_every_failed_call_is_in_the_journal_with_its_cause(tmp_path: Path) -> None:
    causes = iter([Cause.EMPTY, Cause.CUT_OFF, Cause.MALFORMED, Cause.REFUSED])
    inner = scripted()

    def answer(question: Question) -> str | CallFailed:
        cause = next(causes, None)
        return inner.answer(question) if cause is None else CallFailed(cause, "a bad day")

    path = tmp_path / "journal.jsonl"
    model = ScriptedModel(answer, limits=Limits(tries=5))
    assert search(path, rounds=1, proposer=LLMProposer({"one": model})).reason == "rounds"
    calls = [event.call for event in replay(path) if isinstance(event, ModelCalled)]
    assert [call.cause for call in calls[:5]] == [
        Cause.EMPTY,
        Cause.CUT_OFF,
        Cause.MALFORMED,
        Cause.REFUSED,
        None,
    ]
    assert [call.attempt for call in calls[:5]] == [1, 2, 3, 4, 5]
    state = state_of(path)
    assert (state.spent.failed, len(state.tree.variants)) == (4, 12)
    assert {idea.model for idea in state.tree.ideas.values()} == {"scripted/one"}


def test_variants_pass_through_their_stages(tmp_path: Path) -> None:
    recorder = Recorder()
    search(tmp_path / "journal.jsonl", rounds=1, observers=[recorder])
    stages = [(e.variant_id, e.stage) for e in recorder.events if isinstance(e, VariantStage)]
    for variant in {variant for variant, _ in stages}:
        assert [stage for v, stage in stages if v == variant] == ["queued", "measuring"]


@pytest.mark.parametrize("setting", [{"history": "some"}, {"outstanding": 0}])
def test_impossible_settings_are_refused(tmp_path: Path, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(setting))):
        search(tmp_path / "journal.jsonl", **setting)


def test_equal_kernels_are_evaluated_once(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(delay_s=0.003)
    search(path, proposer=FakeProposer(pool=7), evaluator=evaluator)
    state = state_of(path)
    verdicts = [e for e in replay(path) if isinstance(e, VariantEvaluated)]
    assert set(evaluator.seen.values()) == {1}
    assert state.evaluations == len(evaluator.seen) == sum(not e.reused for e in verdicts) <= 7
    assert len(verdicts) == len(state.tree.variants) > 7
    assert sum(state.statuses.values()) == state.evaluations


def test_our_own_failure_is_recorded_and_not_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    calls: list[str] = []

    def fails_once(kernel: Kernel) -> Evaluation:
        calls.append(kernel.id)
        return failed(Status.INFRASTRUCTURE_ERROR) if calls.count(kernel.id) == 1 else correct()

    evaluator = FakeEvaluator(verdict=fails_once, thorough=verdict_by_hash)
    search(path, rounds=1, proposer=FakeProposer(pool=1), evaluator=evaluator)
    statuses = [v.evaluation.status for v in state_of(path).tree.variants.values() if v.evaluation]
    assert sorted(statuses) == ["correct"] * 3 + ["infrastructure_error"]
    assert len(calls) == 2


def test_repeated_and_surplus_answers_are_dropped(tmp_path: Path) -> None:
    class Stutters(FakeProposer):
        async def propose(self, *args: Any) -> Any:
            ideas = await super().propose(*args)
            return [ideas[0], *ideas, *await super().propose(*args)]

        async def implement(self, *args: Any) -> Any:
            inner = super()
            kernels = [each async for each in inner.implement(*args)]
            for each in (kernels[0], *kernels, kernel("surplus")):
                yield each

    path = tmp_path / "journal.jsonl"
    search(path, rounds=1, proposer=Stutters())
    tree = state_of(path).tree
    assert (len(tree.ideas), len(tree.variants)) == (4, 12)
    assert kernel("surplus").id not in {v.kernel.id for v in tree.variants.values()}


class Barren(FakeProposer):
    """Has one idea on the reference, and any number on kernels."""

    had = False

    async def propose(self, problem: Any, expansion: Expansion, history: Any, rng: random.Random) -> Any:
        if expansion.seed is None and self.had:
            return []
        self.had = True
        return (await super().propose(problem, expansion, history, rng))[: 1 if expansion.seed is None else 9]


class Told:
    """Starts from the reference and the best kernel, unless they are exhausted; remembers what it saw."""

    ideas = 2

    def __init__(self, synchronous: bool) -> None:
        self.synchronous = synchronous
        self.told: list[tuple[int, frozenset[str]]] = []

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        self.told.append((view.round, view.exhausted))
        seeds = [None, *(each.seed for each in view.tree.best(1))]
        seeds = [each for each in seeds if (each.kernel.id if each else "") not in view.exhausted]
        place = len(view.pending) if self.synchronous else 0
        return Expansion(seed=seeds[place], ideas=1, variants=1) if place < len(seeds) else None


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_strategy_sees_what_is_exhausted(tmp_path: Path, synchronous: bool) -> None:
    path = tmp_path / "journal.jsonl"
    strategy = Told(synchronous)
    search(path, strategy=strategy, proposer=Barren(), rounds=4)
    told = [exhausted for _, exhausted in strategy.told]
    assert told[0] == frozenset() and told[-1] == {""} == state_of(path).exhausted()
    if synchronous:  # in a round nothing changes
        assert [number for number, exhausted in strategy.told if not exhausted] == [1, 1, 2, 2]
        assert state_of(path).exhausted(before=2) == frozenset()


def test_an_observer_that_raises_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Broken(Recorder):
        def on_event(self, event: Event) -> None:
            raise ZeroDivisionError("a bug of the observer")

    recorder = Recorder()
    path = tmp_path / "journal.jsonl"
    assert search(path, observers=[Broken(), recorder]).reason == "rounds"
    assert caplog.text.count("observer Broken failed") == 1
    assert [e for e in recorder.events if not isinstance(e, VariantStage)] == replay(path)


def test_an_event_is_in_the_journal_before_an_observer_sees_it(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    class StackSamples(Recorder):
        def on_event(self, event: Event) -> None:
            if not isinstance(event, VariantStage):
                last = json.loads(path.read_text().splitlines()[-1])
                assert last["at_s"] >= event.at_s
                self.events.append(event)

    stack_samples = StackSamples()
    search(path, rounds=1, observers=[stack_samples])
    assert stack_samples.events == replay(path)
