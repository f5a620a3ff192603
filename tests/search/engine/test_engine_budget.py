"""Limits on evaluations, time, calls, tokens and dollars: never passed, and the run ends in order."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from search.proposers.llm.proposer import LLMProposer
from search.records.budget import NOTHING, Budget
from search.records.model_calls import Limits, Price, Usage
from tests.search.engine_fakes import scripted
from tests.search.fakes import Clock, FakeEvaluator, FakeProposer, search, state_of, verdict_by_hash


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "most"), [({"calls": 9}, 9), ({"tokens": 20_000}, 20_000), ({"dollars": 0.02}, 0.02)]
)
def test_at_a_limit_the_run_ends_cleanly_with_its_best(
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
    assert budget.cost_reserved == NOTHING
    assert state.spent.calls == len(model.asked) == len((tmp_path / "model_calls.jsonl").open().readlines())
    more = Budget(rounds=50, **{name: most * 2})
    search(path, budget=more, proposer=LLMProposer({"one": model}), evaluator=FakeEvaluator())
    again = state_of(path).spent
    assert {"calls": again.calls, "tokens": again.tokens, "dollars": again.dollars}[name] <= 2 * most
    assert again.calls > state.spent.calls


@pytest.mark.slow
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


def test_time_ends_a_run_cleanly(tmp_path: Path) -> None:
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


class BusyEvaluator(FakeEvaluator):
    """Its device is free for so many kernels alone; the others wait for ever."""

    def __init__(self, free: int) -> None:
        super().__init__()
        self.free = free

    async def evaluate(self, problem: Problem, kernel: Kernel, **how: Any) -> Evaluation:
        if not how.get("thorough"):
            self.free -= 1
            if self.free < 0:
                await asyncio.Event().wait()
        return await super().evaluate(problem, kernel, **how)


@pytest.mark.slow
def test_what_waits_for_a_device_when_the_time_is_up_is_not_measured(tmp_path: Path) -> None:
    path, evaluator = tmp_path / "journal.jsonl", BusyEvaluator(free=3)
    finished = search(path, budget=Budget(seconds=0.5), evaluator=evaluator)
    assert (finished.reason, state_of(path).evaluations) == ("seconds", 3)
    assert finished.confirmed is not None
    # what was not measured is measured when there is time again
    finished = search(path, budget=Budget(seconds=30, evaluations=9), evaluator=FakeEvaluator())
    assert (finished.reason, state_of(path).evaluations) == ("evaluations", 9)
