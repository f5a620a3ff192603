"""The ends of a search steered from outside: its budget, stops, errors, and going on after them."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel
from search.engine.agent import Agent, AgentRefused
from search.engine.run_folder import finalise
from search.records.events import RunFinished, RunStarted
from tests.search.agent_fakes import MEMORY, Gated, by_name, good, judged, kinds, steer
from tests.search.fakes import Clock, FakeEvaluator, correct, state_of


def test_no_more_evaluations_than_the_budget_has(tmp_path: Path) -> None:
    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        two = [steered.submit(idea=idea.id, source=good(n)) for n in (2, 3)]
        with pytest.raises(AgentRefused, match="in flight"):
            steered.submit(idea=idea.id, source=good(4))
        for variant in two:
            await steered.verdict(variant.id)
        with pytest.raises(AgentRefused, match=r"budget.evaluations is used up; call finish"):
            await steered.propose(text="more", category=MEMORY)
        with pytest.raises(AgentRefused, match=r"budget.evaluations is used up; call finish"):
            steered.submit(idea=idea.id, source=good(4))
        finished = await steered.finish()
        assert finished.reason == "evaluations"
        assert finished.confirmed == correct(3)

    steer(tmp_path / "journal.jsonl", steps, evaluations=2)


def test_no_more_rounds_and_seconds_than_the_budget_has(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.jsonl", Clock()

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        variant = await judged(steered, idea, good(2))
        with pytest.raises(AgentRefused, match=r"budget.rounds is used up"):
            await steered.propose(text="more", category=MEMORY, parent=variant.id)
        assert steered.round == 1, "the round that there may be stays open"
        await judged(steered, idea, good(3))
        clock.now_s += 60
        with pytest.raises(AgentRefused, match=r"budget.seconds is used up"):
            steered.submit(idea=idea.id, source=good(4))
        assert (await steered.finish()).confirmed == correct(3)

    steer(path, steps, rounds=1, seconds=50, clock=clock)
    assert state_of(path).tree.rounds_closed == 1


def test_time_that_is_up_before_a_kernels_turn(tmp_path: Path) -> None:
    path, clock = tmp_path / "journal.jsonl", Clock()

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        one, two = (steered.submit(idea=idea.id, source=good(n)) for n in (2, 3))
        await asyncio.sleep(0.01)
        clock.now_s += 60
        steered.session.evaluator.gate.set()  # type: ignore[attr-defined]
        assert (await steered.verdict(one.id)).evaluation == correct(2)
        with pytest.raises(AgentRefused, match="not evaluated: the budget ran out"):
            await steered.verdict(two.id)
        assert (await steered.finish()).reason == "seconds"

    gated = functools.partial(Gated, verdict=by_name)
    steer(path, steps, seconds=50, clock=clock, outstanding=1, evaluator=gated)


def test_a_stop_is_immediate_and_the_run_resumes_from_there(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def until_stopped(steered: Agent) -> None:
        gate = steered.session.evaluator.gate  # type: ignore[attr-defined]
        idea = await steered.propose(text="tile it", category=MEMORY)
        gate.set()
        best = await judged(steered, idea, good(2))
        gate.clear()
        waiting = asyncio.create_task(steered.verdict(steered.submit(idea=idea.id, source=good(3)).id))
        await asyncio.sleep(0.01)
        finished = await asyncio.wait_for(steered.stop("disconnected"), 20)
        assert (finished.reason, finished.best, finished.confirmed) == ("disconnected", best, None)
        with pytest.raises(AgentRefused, match="disconnected"):
            await waiting
        with pytest.raises(AgentRefused, match="stopped"):
            await steered.propose(text="more", category=MEMORY)

    gated = functools.partial(Gated, verdict=by_name)
    steer(path, until_stopped, evaluator=gated)
    assert state_of(path).tree.rounds_closed == 0
    assert finalise(tmp_path, state_of(path))["best"]["speedup"] == 2.0
    assert "# good 2" in (tmp_path / "best.py").read_text()

    async def afterwards(steered: Agent) -> None:
        (idea,) = steered.session.state.tree.ideas.values()
        assert await judged(steered, idea, good(3)), "it went to the evaluator again by itself"
        assert steered.session.budget.spent == 2
        assert (await steered.finish()).confirmed == correct(3)

    steer(path, afterwards)
    assert state_of(path).tree.rounds_closed == 1


def test_a_stop_while_the_best_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def steps(steered: Agent) -> None:
        gate = steered.session.evaluator.gate  # type: ignore[attr-defined]
        gate.set()
        idea = await steered.propose(text="tile it", category=MEMORY)
        best = await judged(steered, idea, good(2))
        gate.clear()
        finishing = asyncio.create_task(steered.finish())
        await asyncio.sleep(0.01)
        finishing.cancel()
        assert steered.busy
        with pytest.raises(AgentRefused, match="is finishing"):
            steered.submit(idea=idea.id, source=good(3))
        finished = await asyncio.wait_for(steered.stop("interrupted"), 20)
        assert (finished.reason, finished.best, finished.confirmed) == ("interrupted", best, None)
        assert not steered.busy

    steer(path, steps, evaluator=functools.partial(Gated, verdict=by_name))
    assert kinds(path).count(RunFinished) == 1


def test_an_idea_after_the_end_takes_the_run_up_again(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        best = await judged(steered, idea, good(2))
        assert await steered.finish() == await steered.finish()
        second = await steered.propose(text="more", category=MEMORY, parent=best.id)
        await judged(steered, second, good(3))
        assert (await steered.finish()).confirmed == correct(3)

    steer(path, steps)
    assert kinds(path).count(RunStarted) == kinds(path).count(RunFinished) == 2
    assert state_of(path).tree.rounds_closed == 2


def test_an_evaluator_that_breaks_stops_the_run_with_the_reason(tmp_path: Path) -> None:
    def broken(kernel: Kernel) -> Evaluation:
        raise RuntimeError("on fire")

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        with pytest.raises(AgentRefused, match="on fire"):
            await judged(steered, idea, good(2))
        with pytest.raises(AgentRefused, match="on fire"):
            await steered.propose(text="more", category=MEMORY)
        assert (await steered.finish()).reason.startswith("error: evaluate variant")

    steer(tmp_path / "journal.jsonl", steps, evaluator=lambda: FakeEvaluator(verdict=broken))
