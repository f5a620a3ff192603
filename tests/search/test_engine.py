from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, Problem
from kernel_library.entry import Entry, Hit, Kind, Measurement
from search.budget import Budget
from search.events import (
    BestConfirmed,
    Event,
    IdeaProposed,
    LeadersCompared,
    ModelCalled,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantStage,
    VariantWritten,
)
from search.journal import Journal, replay
from search.llm import Answer, CallFailed, Cause, Limits, Price, Purpose, Question, Usage
from search.proposers.llm.proposer import LLMProposer
from search.protocols import ProposerFailed
from search.ranking import MEDIAN
from search.run_state import RunState, rebuild
from search.tree import LIBRARY, Idea, Seed, speedups_of
from tests.search.fakes import (
    PROBLEM,
    Clock,
    FakeEvaluator,
    FakeProposer,
    Recorder,
    ScriptedModel,
    build,
    code_answer,
    contents,
    correct,
    failed,
    ideas_answer,
    in_turns,
    kernel,
    search,
    state_of,
    verdict_by_hash,
)

ROOT = Path(__file__).parents[2]


@dataclass
class FakeLibrary:
    hits: list[Hit] = field(default_factory=list)
    asked: int = 0
    added: list[Entry] = field(default_factory=list)
    refuses: str | None = None

    def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
        self.asked += 1
        return self.hits[:k]

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        return next((hit.entry for hit in self.hits if hit.kind is Kind.PROBLEM), None)

    def refusal(self, entry: Entry) -> str | None:
        return self.refuses

    def add(self, entry: Entry) -> bool:
        self.added.append(entry)
        return True


def hit(name: str, speedup: float, kind: Kind = Kind.PROBLEM) -> Hit:
    measurement = Measurement(problem=PROBLEM, evaluation=correct(speedup))
    found = measurement.evaluation if kind is Kind.PROBLEM else None
    entry = Entry(kernel=kernel(name), measurements=(measurement,))
    return Hit(entry=entry, kind=kind, why=f"by its {kind}", evaluation=found)


def as_seed(hit: Hit) -> Seed:
    entry = hit.entry
    return Seed(id=entry.id, kernel=entry.kernel, evaluation=hit.evaluation, why=hit.why, drop_in=hit.drop_in)


# --- the undisturbed run --------------------------------------------------------------------------


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


def test_a_proposer_is_told_of_closed_rounds_and_of_this_rounds_ideas(tmp_path: Path) -> None:
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


def test_without_history_a_proposer_is_told_nothing(tmp_path: Path) -> None:
    proposer = FakeProposer()
    search(tmp_path / "journal.jsonl", proposer=proposer, history="none")
    assert len(proposer.histories) > 3
    assert not any(proposer.histories)


def test_no_more_evaluations_than_allowed_are_outstanding(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(delay_s=0.003)
    search(tmp_path / "journal.jsonl", evaluator=evaluator, outstanding=4)
    assert evaluator.most_running == 4


class Counting(FakeProposer):
    """Keeps how many kernels had been asked for and had no verdict, each time that some were asked for."""

    def __init__(self, evaluator: FakeEvaluator, delay_s: float) -> None:
        super().__init__(delay_s=delay_s)
        self.evaluator = evaluator
        self.asked = 0
        self.under_way: list[int] = []

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        self.asked += n
        self.under_way.append(self.asked - (self.evaluator.seen.total() - self.evaluator.running))
        async for each in super().implement(problem, idea, parent, n, written, rng):
            yield each


@pytest.mark.parametrize(("writing_s", "evaluating_s"), [(0, 0.003), (0.003, 0.003), (0.01, 0)])
def test_nothing_is_asked_for_while_the_queue_is_long(
    tmp_path: Path, writing_s: float, evaluating_s: float
) -> None:
    evaluator = FakeEvaluator(delay_s=evaluating_s)
    proposer = Counting(evaluator, writing_s)
    parts = {"evaluator": evaluator, "proposer": proposer, "ideas": 10}
    search(tmp_path / "journal.jsonl", outstanding=4, writing=6, **parts)
    assert len(proposer.under_way) > 12
    assert max(proposer.under_way) <= (2 * 4 - 1) + (6 - 1) + 3, "three variants an idea"
    assert max(proposer.under_way) >= 6, "there is enough to do"


@pytest.mark.slow
def test_the_evaluator_starts_on_the_first_kernel_while_the_others_are_written(tmp_path: Path) -> None:
    """64 calls at a time, and a model that takes its time: no idea, and no round, waits until it is whole."""
    at_a_time = [0, 0]

    async def answer(question: Question) -> str:
        if question.purpose is Purpose.IDEAS:
            return ideas_answer(*(f"idea number {i}: {word}" for i, word in enumerate("abcdefgh")))
        at_a_time[0] += 1
        at_a_time[1] = max(at_a_time)
        await asyncio.sleep(0.3 * int(re.findall(r"variant (\d) of 8", question.prompt)[0]))
        at_a_time[0] -= 1
        return code_answer(question.prompt.__hash__())

    class Slow(ScriptedModel):
        async def complete(self, question: Question) -> Answer:
            return Answer(text=await answer(question), usage=self.usage)

    recorder = Recorder()
    model = Slow(lambda question: "", limits=Limits(concurrency=64))
    evaluator = FakeEvaluator(verdict=lambda kernel: correct(), delay_s=0.02)
    parts = {"evaluator": evaluator, "proposer": LLMProposer({"slow": model}), "observers": [recorder]}
    search(tmp_path / "journal.jsonl", rounds=1, ideas=8, branch=8, outstanding=8, **parts)
    assert at_a_time[1] == 64
    written = [event.at_s for event in recorder.events if isinstance(event, VariantWritten)]
    judged = [event.at_s for event in recorder.events if isinstance(event, VariantEvaluated)]
    assert len(judged) == 64
    assert sum(at_s < max(written) for at_s in judged) >= 48, "all but those that were written last"
    assert min(judged) < min(written) + 0.3


@pytest.mark.parametrize("repairs", [0, 1, 2])
def test_variants_that_fail_are_given_back(tmp_path: Path, repairs: int) -> None:
    def verdict(kernel: Kernel) -> Evaluation:
        mended = kernel.source.count("repaired")
        return [failed(Status.COMPILE_ERROR), failed(Status.INCORRECT), correct()][mended]

    path, proposer = tmp_path / "journal.jsonl", FakeProposer()
    search(path, rounds=1, repairs=repairs, proposer=proposer, evaluator=FakeEvaluator(verdict=verdict))
    state = state_of(path)
    assert len(state.tree.variants) == 12 * (1 + repairs)
    assert len(proposer.repaired) == 12 * repairs
    assert state.statuses[Status.CORRECT] == (12 if repairs == 2 else 0)
    for variant in state.tree.variants.values():
        mended = variant.kernel.source.count("repaired")
        assert bool(variant.repairs) == bool(mended)
        if variant.repairs:
            assert state.tree.variants[variant.repairs].kernel.source.count("repaired") == mended - 1


@pytest.mark.parametrize("status", [Status.REJECTED, Status.INFRASTRUCTURE_ERROR])
def test_what_no_log_helps_against_is_not_given_back(tmp_path: Path, status: Status) -> None:
    proposer = FakeProposer()
    evaluator = FakeEvaluator(verdict=lambda kernel: failed(status))
    search(tmp_path / "journal.jsonl", rounds=1, repairs=1, proposer=proposer, evaluator=evaluator)
    assert proposer.repaired == []


def test_repairs_stay_within_the_evaluations(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(verdict=lambda kernel: failed())
    search(path, rounds=9, evaluations=17, repairs=3, evaluator=evaluator)
    assert evaluator.seen.total() == 17
    assert all(variant.evaluation for variant in state_of(path).tree.variants.values())


def test_a_run_with_repairs_cut_anywhere_loses_none(tmp_path: Path) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    search(path, rounds=2, repairs=1)
    expected = state_of(path).tree
    for lines in range(0, len(path.read_text().splitlines()) + 1, 3):
        cut(path, part, lines)
        search(part, rounds=2, repairs=1)
        assert state_of(part).tree.variants == expected.variants, f"cut after line {lines}"


def test_a_proposer_that_can_do_nothing_more_ends_the_run_in_order(tmp_path: Path) -> None:
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


def scripted(**more: Any) -> ScriptedModel:
    """A model with something new for every question."""
    asked = iter(range(10**6))

    def answer(question: Question) -> str | CallFailed:
        number = next(asked)
        if question.purpose is not Purpose.IDEAS:
            return code_answer(number)
        assert question.schema is not None
        (seed,) = question.schema["properties"]["ideas"]["items"]["properties"]["seed"]["enum"]
        return ideas_answer(
            *(f"idea {number} {word}" for word in ("red", "green", "blue", "grey")), seed=seed
        )

    return ScriptedModel(answer, **more)


@pytest.mark.parametrize(
    ("limit", "most"), [({"calls": 9}, 9), ({"tokens": 20_000}, 20_000), ({"dollars": 0.02}, 0.02)]
)
def test_at_a_cap_the_run_closes_in_order_with_its_best(
    tmp_path: Path, limit: dict[str, Any], most: float
) -> None:
    ((name, _),) = limit.items()
    model = scripted(
        price=Price(input=0.1, output=2.0),
        limits=Limits(output_tokens=1000),
        usage=Usage(input_tokens=900, output_tokens=500),
        delay_s=0.002,
    )
    path, budget = tmp_path / "journal.jsonl", Budget(rounds=50, **limit)
    finished = search(path, budget=budget, proposer=LLMProposer({"one": model}), evaluator=FakeEvaluator())
    state = state_of(path)
    assert finished.reason == name
    assert finished.best is not None
    assert finished.confirmed is not None
    assert all(variant.evaluation for variant in state.tree.variants.values())
    spent = {"calls": state.spent.calls, "tokens": state.spent.tokens, "dollars": float(state.spent.dollars)}
    assert 0.5 * most < spent[name] <= most
    assert (budget.calls_reserved, budget.tokens_reserved, budget.dollars_reserved) == (0, 0, 0)
    assert state.spent.calls == len(model.asked) == len((tmp_path / "model_calls.jsonl").open().readlines())
    more = Budget(rounds=50, **{name: most * 2})
    search(path, budget=more, proposer=LLMProposer({"one": model}), evaluator=FakeEvaluator())
    again = state_of(path).spent
    assert {"calls": again.calls, "tokens": again.tokens, "dollars": again.dollars}[name] <= 2 * most
    assert again.calls > state.spent.calls


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


def test_variants_are_evaluated_while_others_are_written(tmp_path: Path) -> None:
    recorder = Recorder()
    search(
        tmp_path / "journal.jsonl",
        rounds=1,
        ideas=8,
        proposer=FakeProposer(delay_s=0.02),
        observers=[recorder],
    )
    kinds = [type(event) for event in recorder.events]
    last_written = max(i for i, kind in enumerate(kinds) if kind is VariantWritten)
    assert kinds.index(VariantEvaluated) < last_written


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


# --- equal kernels --------------------------------------------------------------------------------


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


# --- limits ---------------------------------------------------------------------------------------


@given(limit=st.integers(1, 40), pool=st.sampled_from([6, 15, 10**9]), delay_s=st.sampled_from([0, 0.001]))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_evaluations_never_pass_their_limit(
    tmp_path_factory: pytest.TempPathFactory, limit: int, pool: int, delay_s: float
) -> None:
    path = tmp_path_factory.mktemp("run") / "journal.jsonl"
    evaluator = FakeEvaluator(delay_s=delay_s)
    proposer = FakeProposer(delay_s=delay_s, pool=pool)
    finished = search(path, rounds=3, evaluations=limit, evaluator=evaluator, proposer=proposer)
    state = state_of(path)
    assert evaluator.seen.total() == state.evaluations <= limit
    assert all(v.evaluation for v in state.tree.variants.values())
    assert finished.reason == ("rounds" if state.tree.rounds_closed == 3 else "evaluations")
    if finished.reason == "evaluations":
        assert state.evaluations == limit


def test_a_round_cut_by_the_budget_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path, rounds=3, evaluations=17)
    state = state_of(path)
    assert finished.reason == "evaluations"
    assert (state.tree.rounds_closed, state.evaluations, len(state.tree.variants)) == (2, 17, 17)
    assert finished.confirmed is not None


def test_time_ends_a_run_in_order(tmp_path: Path) -> None:
    clock = Clock()

    def takes_a_second(kernel: Kernel) -> Evaluation:
        clock.now_s += 1.0
        return verdict_by_hash(kernel)

    path = tmp_path / "journal.jsonl"
    evaluator = FakeEvaluator(verdict=takes_a_second)
    budget = Budget(seconds=20, clock=clock)
    finished = search(path, budget=budget, evaluator=evaluator, outstanding=1)
    state = state_of(path)
    assert finished.reason == "seconds"
    assert evaluator.seen.total() == 20
    assert state.tree.rounds_closed == 2
    assert finished.confirmed is not None
    # a resumed run carries on from the time used: 20 s and one confirmation
    finished = search(path, budget=Budget(seconds=24, clock=clock), evaluator=evaluator, outstanding=1)
    assert (finished.reason, evaluator.seen.total()) == ("seconds", 23)


# --- how a run ends -------------------------------------------------------------------------------


def test_no_ideas_left_ends_the_run(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    finished = search(path, rounds=5, proposer=FakeProposer(last_round=2))
    assert finished.reason == "exhausted"
    assert finished.confirmed is not None
    assert state_of(path).tree.rounds_closed == 2


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


class Nosy(Recorder):
    """Does something at the n-th event of a kind."""

    def __init__(self, kind: type[Event], n: int, act: Callable[[], None]) -> None:
        super().__init__()
        self.kind, self.left, self.act = kind, n, act

    def on_event(self, event: Event) -> None:
        super().on_event(event)
        if isinstance(event, self.kind):
            self.left -= 1
            if self.left == 0:
                self.act()


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


# --- stop -----------------------------------------------------------------------------------------


def stopped(path: Path, *, kind: type[Event], n: int, **parts: Any) -> RunFinished:
    """A run that is asked to stop at the n-th event of a kind."""
    with Journal(path) as journal:
        engine = build(journal, **parts)
        engine.session.observers = (Nosy(kind, n, lambda: engine.request_stop("interrupted")),)
        return asyncio.run(engine.run())


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("kind", [IdeaProposed, VariantWritten, VariantEvaluated, RoundClosed])
def test_a_stopped_run_goes_on_where_it_was(tmp_path: Path, kind: type[Event], n: int) -> None:
    path, undisturbed = tmp_path / "journal.jsonl", tmp_path / "undisturbed.jsonl"
    evaluator = FakeEvaluator(delay_s=0.003)
    finished = stopped(path, kind=kind, n=n, evaluator=evaluator, proposer=FakeProposer(delay_s=0.003))
    before = state_of(path)
    assert finished.reason == "interrupted"
    assert before.tree.rounds_closed == (n if kind is RoundClosed else 0)
    if before.tree.best():
        assert finished.confirmed is not None
    proposer = FakeProposer()
    assert search(path, evaluator=evaluator, proposer=proposer).reason == "rounds"
    search(undisturbed)
    assert contents(state_of(path).tree) == contents(state_of(undisturbed).tree)
    assert set(evaluator.seen.values()) == {1}
    assert not before.implemented & set(proposer.implemented)


class Hangs(FakeEvaluator):
    """Never comes back."""

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        if thorough or not self.seen:
            return await super().evaluate(problem, kernel, thorough=thorough, on_stage=on_stage)
        await asyncio.Event().wait()
        raise AssertionError


def test_evaluations_that_outlast_the_grace_time_are_cancelled_and_picked_up(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    began = time.monotonic()
    finished = stopped(
        path, kind=VariantEvaluated, n=1, evaluator=Hangs(verdict=lambda k: correct()), grace_s=0.2
    )
    assert 0.2 <= time.monotonic() - began < 20.0, "they would never end"
    assert finished.reason == "interrupted"
    assert finished.confirmed == correct()
    waiting = [v for v in state_of(path).tree.variants.values() if v.evaluation is None]
    assert waiting
    evaluator, proposer = FakeEvaluator(), FakeProposer()
    search(path, rounds=1, evaluator=evaluator, proposer=proposer)
    assert evaluator.seen.total() == 11
    assert all(v.evaluation for v in state_of(path).tree.variants.values())


@pytest.mark.parametrize("confirm_s", [0.0, 0.1])
def test_a_confirmation_that_takes_too_long_after_a_stop_is_given_up(
    tmp_path: Path, confirm_s: float
) -> None:
    class Slow(FakeEvaluator):
        async def evaluate(
            self,
            problem: Problem,
            kernel: Kernel,
            *,
            thorough: bool = False,
            on_stage: Callable[[str], None] | None = None,
        ) -> Evaluation:
            if thorough:
                await asyncio.sleep(60)
            return await super().evaluate(problem, kernel)

    path = tmp_path / "journal.jsonl"
    finished = stopped(path, kind=RoundClosed, n=1, evaluator=Slow(), confirm_s=confirm_s)
    assert finished.best == state_of(path).tree.best()[0]
    assert finished.confirmed is None


# --- resume ---------------------------------------------------------------------------------------


def cut(source: Path, target: Path, lines: int) -> RunState:
    """A journal of the first lines of another; returns what it says."""
    target.write_text("".join(source.read_text().splitlines(keepends=True)[:lines]))
    return state_of(target)


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


def test_a_finished_run_goes_on_with_more_rounds(tmp_path: Path) -> None:
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
        ("other settings of the strategy", {"keep": 1}),
    ],
)
def test_another_search_is_not_mixed_in(tmp_path: Path, what: str, other: dict[str, Any]) -> None:
    path, part = tmp_path / "journal.jsonl", tmp_path / "part.jsonl"
    search(path)
    proposed = [i for i, e in enumerate(replay(path), 1) if isinstance(e, IdeaProposed) and e.idea.round == 2]
    cut(path, part, proposed[-1])
    with pytest.raises(ValueError, match=what):
        search(part, **other)


def test_the_library_seeds_the_first_round_and_is_asked_once(tmp_path: Path) -> None:
    part, straight = tmp_path / "part.jsonl", tmp_path / "straight.jsonl"
    library = FakeLibrary([hit("gemm", 200.0, Kind.RELATED), hit("liger", 100.0)])
    search(straight, library=library)
    taken, first, *_ = state_of(straight).tree.ideas.values()
    assert taken.parent == first.parent == library.hits[1].entry.id
    assert (taken.proposer, first.proposer) == (LIBRARY, "fake")
    assert library.hits[0].entry.id not in {idea.parent for idea in state_of(straight).tree.ideas.values()}
    for lines in (1, 6, 20):
        cut(straight, part, lines)
        other = FakeLibrary([hit("newer", 200.0)])
        search(part, library=other)
        assert other.asked == 0
        assert contents(state_of(part).tree) == contents(state_of(straight).tree)
        assert any(
            e.entries == tuple(map(as_seed, library.hits)) for e in replay(part) if isinstance(e, RunStarted)
        )


def judge_by(speedups: Mapping[str, float]) -> Callable[[Kernel], Evaluation]:
    """These kernels have these speedups; any other has 1 if it is correct at all."""

    def verdict(kernel: Kernel) -> Evaluation:
        if kernel.id in speedups:
            return correct(speedups[kernel.id])
        evaluation = verdict_by_hash(kernel)
        return correct(1.0) if evaluation.timing else evaluation

    return verdict


def test_the_librarys_kernels_are_measured_first_and_are_to_beat(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    hits = [hit("old", 100.0), hit("gemm", 200.0, Kind.RELATED), hit("slow", 50.0)]
    library, (old, gemm, slow) = FakeLibrary(hits), [each.entry for each in hits]
    evaluator = FakeEvaluator(verdict=judge_by({old.kernel.id: 3.0, slow.kernel.id: 0.5}))
    finished = search(path, rounds=3, library=library, evaluator=evaluator)
    tree = state_of(path).tree
    taken = [idea for idea in tree.ideas.values() if idea.proposer == LIBRARY]
    assert [(idea.parent, idea.round) for idea in taken] == [(old.id, 1), (slow.id, 1)]
    assert f"{old.id} as it is (by its problem)" in taken[0].text
    assert evaluator.seen[old.kernel.id] == evaluator.seen[slow.kernel.id] == 1
    assert gemm.kernel.id not in evaluator.seen
    assert finished.best is not None and finished.best.kernel == old.kernel
    assert library.added == [], "it came from there"
    assert [round.best.kernel for round in replay(path) if isinstance(round, RoundClosed) and round.best] == [
        old.kernel
    ] * 3
    # From the second round on their variants stand for them, with what was measured here.
    starts = {idea.parent for idea in tree.ideas.values() if idea.round > 1}
    assert finished.best.id in starts and not starts & {old.id, slow.id}
    speedups = speedups_of([], tree.history())
    assert (speedups[old.id], speedups[slow.id]) == (3.0, 0.5)


def test_a_kernel_of_the_library_that_fails_here_is_not_built_on(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    broken = hit("old", 100.0)
    evaluator = FakeEvaluator(
        verdict=lambda kernel: failed() if kernel == broken.entry.kernel else verdict_by_hash(kernel)
    )
    proposer = FakeProposer()
    search(path, rounds=2, library=FakeLibrary([broken]), evaluator=evaluator, proposer=proposer, repairs=1)
    tree = state_of(path).tree
    (variant,) = [v for v in tree.variants.values() if v.kernel == broken.entry.kernel]
    assert variant.id not in proposer.repaired
    assert not {idea.parent for idea in tree.ideas.values() if idea.round > 1} & {broken.entry.id, variant.id}


def test_what_a_proposer_cannot_build_on_is_measured_and_left(tmp_path: Path) -> None:
    class Narrow(FakeProposer):
        def extends(self, problem: Problem, kernel: Kernel) -> bool:
            return kernel != foreign.entry.kernel

    path, foreign = tmp_path / "journal.jsonl", hit("old", 100.0)
    evaluator = FakeEvaluator(verdict=judge_by({foreign.entry.kernel.id: 3.0}))
    finished = search(path, rounds=3, library=FakeLibrary([foreign]), evaluator=evaluator, proposer=Narrow())
    tree = state_of(path).tree
    assert finished.best is not None and finished.best.kernel == foreign.entry.kernel
    asked_for = [idea for idea in tree.ideas.values() if idea.proposer != LIBRARY]
    assert {idea.parent for idea in asked_for if idea.round == 1} == {""}
    assert len(asked_for) == 3 * 4
    assert not {idea.parent for idea in asked_for} & {foreign.entry.id, finished.best.id}


def test_a_library_that_cannot_be_read_is_done_without(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Away(FakeLibrary):
        def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
            raise OSError("no route to host")

    library = Away()
    finished = search(tmp_path / "journal.jsonl", library=library)
    assert finished.best is not None and len(library.added) == 1
    assert "no route to host" in caplog.text


def test_only_a_confirmed_winner_is_offered_to_the_library(tmp_path: Path) -> None:
    library = FakeLibrary()
    finished = search(tmp_path / "held.jsonl", library=library)
    assert finished.best is not None
    assert [e.kernel for e in library.added] == [finished.best.kernel]
    (added,) = library.added
    assert added.measurements == (Measurement(problem=PROBLEM, evaluation=finished.confirmed),)
    tree = state_of(tmp_path / "held.jsonl").tree
    line = tree.lineage(finished.best)
    assert [each.parent for each in line] == ["", *(each.id for each in line[:-1])]
    assert added.lineage.ideas == tuple(tree.ideas[each.idea].text for each in line)
    assert (added.lineage.start, added.lineage.run) == ("", str(tmp_path))
    library = FakeLibrary()
    broken = FakeEvaluator(thorough=lambda kernel: failed(Status.INCORRECT))
    search(tmp_path / "broken.jsonl", library=library, evaluator=broken)
    assert library.added == []


def test_a_winner_goes_to_the_library_with_how_it_did_beside_the_best_there(tmp_path: Path) -> None:
    known = hit("old", 100.0)
    library = FakeLibrary([known])
    evaluator = FakeEvaluator(verdict=judge_by({known.entry.kernel.id: 0.6}))
    finished = search(tmp_path / "journal.jsonl", library=library, evaluator=evaluator)
    assert finished.best is not None
    (added,) = library.added
    against = added.measurements[0].against
    assert against is not None
    assert (against.entry, against.faster) == (known.entry.id, True)
    assert against.speedup == pytest.approx(1 / 0.6)
    assert evaluator.compared[-1] == [added.kernel.id, known.entry.kernel.id]


def test_a_winner_that_the_library_refuses_is_not_measured_beside_its_best(tmp_path: Path) -> None:
    known = hit("old", 100.0)
    library = FakeLibrary([known], refuses="it is too slow")
    evaluator = FakeEvaluator(verdict=judge_by({known.entry.kernel.id: 0.6}))
    search(tmp_path / "journal.jsonl", library=library, evaluator=evaluator)
    assert library.added == []
    assert not any(known.entry.kernel.id in kernels for kernels in evaluator.compared)


# --- the leaders ----------------------------------------------------------------------------------


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


def test_a_leader_that_is_clear_is_not_measured_again(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(verdict=lambda kernel: correct(2 ** (int(kernel.id, 16) % 1009)))
    search(tmp_path / "journal.jsonl", evaluator=evaluator, ideas=1, branch=3)
    assert evaluator.compared == []


@pytest.mark.slow
def test_a_run_whose_leaders_were_compared_goes_on_from_anywhere(tmp_path: Path) -> None:
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


def test_a_journal_from_before_goes_on_by_the_median(tmp_path: Path) -> None:
    path, evaluator = tmp_path / "journal.jsonl", Lucky()
    search(path, rounds=1, evaluator=evaluator, ranking=MEDIAN)
    first, *rest = path.read_text().splitlines(keepends=True)
    started = json.loads(first)
    assert started.pop("ranking") == MEDIAN
    path.write_text("".join([json.dumps(started) + "\n", *rest]))
    finished = search(path, rounds=2, evaluator=evaluator)
    assert evaluator.compared == []
    assert finished.best is not None
    variants = state_of(path).tree.variants.values()
    assert finished.best.kernel == min((v.kernel for v in variants), key=truth), "the luckiest"


CHILD = """
import logging, sys
from pathlib import Path
from tests.search.fakes import FakeEvaluator, FakeProposer, search
search(Path(sys.argv[1]), proposer=FakeProposer(delay_s=0.05), evaluator=FakeEvaluator(delay_s=0.1))
"""


@pytest.mark.parametrize("lines", [8, 20, 45])
def test_a_killed_process_loses_only_the_work_in_flight(tmp_path: Path, lines: int) -> None:
    path, undisturbed = tmp_path / "journal.jsonl", tmp_path / "undisturbed.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or path.read_bytes().count(b"\n") < lines:
            assert time.monotonic() < deadline
            assert child.poll() is None
            time.sleep(0.005)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert path.read_bytes().count(b"\n") >= lines
    before = rebuild(replay(path))
    assert before.finished is None
    evaluator = FakeEvaluator()
    assert search(path, evaluator=evaluator).reason == "rounds"
    search(undisturbed)
    assert contents(state_of(path).tree) == contents(state_of(undisturbed).tree)
    assert not set(evaluator.seen) & set(before.verdicts)


def test_a_running_search_cannot_be_joined(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    child = subprocess.Popen([sys.executable, "-c", CHILD, str(path)], cwd=ROOT)
    try:
        deadline = time.monotonic() + 120
        while not path.exists() or not path.stat().st_size:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        with pytest.raises(ValueError, match="another process is running this search"):
            search(path)
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()


def test_a_cancelled_run_leaves_nothing_running(tmp_path: Path) -> None:
    async def cancelled() -> set[asyncio.Task[Any]]:
        with Journal(tmp_path / "journal.jsonl") as journal:
            recorder = Recorder()
            task = asyncio.create_task(build(journal, evaluator=Hangs(), observers=[recorder]).run())
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0.01)
            assert task.cancelled()
            assert recorder.closed == 1
            return asyncio.all_tasks() - {asyncio.current_task()}

    logging.getLogger("asyncio").setLevel(logging.ERROR)
    assert not asyncio.run(cancelled())
