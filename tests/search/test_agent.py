"""A search steered from outside: what is refused and why, rounds, the budget, stops, what is journaled."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from evaluators.evaluation import Evaluation, Status
from evaluators.problem import Kernel, Problem
from kernel_library.entry import Entry, Hit, Kind, Measurement
from search.agent import Agent, Refused
from search.budget import Budget
from search.events import (
    BestConfirmed,
    IdeaImplemented,
    IdeaProposed,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantWritten,
)
from search.journal import Journal, replay
from search.run_folder import finalise
from search.tree import Category, Idea, Variant
from tests.search.fakes import (
    PROBLEM,
    Clock,
    FakeEvaluator,
    Recorder,
    contents,
    correct,
    failed,
    kernel,
    search,
    state_of,
)

MEMORY = Category.MEMORY.value


class Gated(FakeEvaluator):
    """Holds every kernel until the gate is open."""

    def __init__(self, **parts: Any) -> None:
        super().__init__(**parts)
        self.gate = asyncio.Event()

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        if on_stage:
            on_stage("building")
        await self.gate.wait()
        return await super().evaluate(problem, kernel, thorough=thorough, on_stage=on_stage)


class OneEntry:
    """A library that holds one kernel."""

    def __init__(self) -> None:
        measured = Measurement(problem=PROBLEM, evaluation=correct(1.5))
        self.entry = Entry(kernel=kernel("of the library"), measurements=(measured,))
        self.added: list[Entry] = []

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        return None

    def refusal(self, entry: Entry) -> str | None:
        return None

    def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
        found = self.entry.measurements[0].evaluation
        return [Hit(entry=self.entry, kind=Kind.PROBLEM, why="for this problem", evaluation=found)]

    def add(self, entry: Entry) -> bool:
        self.added.append(entry)
        return True


def by_name(kernel: Kernel) -> Evaluation:
    """`good 2.5` is correct and as fast as it says; all else is wrong."""
    name = kernel.source.strip().partition("# ")[2]
    return correct(float(name.split()[1])) if name.startswith("good") else failed()


def agent(journal: Journal, **parts: Any) -> Agent:
    limits = {
        name: parts.pop(name) for name in ("rounds", "evaluations", "seconds", "clock") if name in parts
    }
    parts.setdefault("evaluator", FakeEvaluator(verdict=by_name))
    return Agent(problem=PROBLEM, journal=journal, budget=Budget(**limits), **parts)


def good(speedup: float) -> str:
    return kernel(f"good {speedup}").source


Steps = Callable[[Agent], Awaitable[None]]


def steer(path: Path, steps: Steps, **parts: Any) -> None:
    """Lets `steps` steer the search with this journal."""

    async def main() -> None:
        with Journal(path) as journal:
            steered = agent(journal, **{k: v() if k == "evaluator" else v for k, v in parts.items()})
            steered.start()
            try:
                await asyncio.wait_for(steps(steered), 60)
            finally:
                steered.session.close()

    asyncio.run(main())


async def judged(steered: Agent, idea: Idea, source: str, **more: str) -> Variant:
    return await steered.verdict(steered.submit(idea=idea.id, source=source, **more).id)


def kinds(path: Path) -> list[type]:
    return [type(event) for event in replay(path)]


# --- a whole run ----------------------------------------------------------------------------------


def test_a_run_from_the_first_idea_to_the_best_kernel(tmp_path: Path) -> None:
    path, library = tmp_path / "journal.jsonl", OneEntry()
    seen = Recorder()

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text=" tile it ", category="Memory Access", expected="2x", model="me")
        assert (idea.text, idea.round, idea.parent, idea.proposer) == ("tile it", 1, "", "agent")
        assert (idea.model, idea.expected, idea.told) == ("me", "2x", ())
        first, wrong = await asyncio.gather(
            judged(steered, idea, good(2.0)), judged(steered, idea, kernel("bad").source)
        )
        assert first.evaluation is not None and first.evaluation.speedup == 2.0
        assert wrong.evaluation is not None and wrong.evaluation.status is Status.INCORRECT
        mended = await judged(steered, idea, good(1.2), repairs=wrong.id, language="triton")
        assert (mended.repairs, mended.round) == (wrong.id, 1)
        second = await steered.propose(
            text="wider tiles", category=MEMORY, parent=first.id, builds_on=library.entry.id
        )
        assert (second.round, second.told) == (2, (idea.id,))
        best = await judged(steered, second, good(3.0))
        third = await steered.propose(text="or the entry", category=MEMORY, parent=library.entry.id)
        assert third.round == 2
        finished = await steered.finish()
        assert (finished.reason, finished.best, finished.confirmed) == ("finished", best, correct(3.0))
        assert contents(steered.session.state.tree) == contents(state_of(path).tree)

    steer(path, steps, library=library, observers=[seen])
    assert kinds(path) == [
        RunStarted,
        IdeaProposed,
        *[VariantWritten, VariantWritten, VariantEvaluated, VariantEvaluated],
        *[VariantWritten, VariantEvaluated],
        *[IdeaImplemented, RoundClosed, IdeaProposed],
        *[VariantWritten, VariantEvaluated],
        IdeaProposed,
        *[IdeaImplemented, IdeaImplemented, RoundClosed],
        *[BestConfirmed, RunFinished],
    ]
    started = replay(path)[0]
    assert isinstance(started, RunStarted)
    assert (started.proposer, started.strategy, started.rounds) == ("Agent", "agent", 0)
    assert [entry.kernel.source for entry in library.added] == [good(3.0)]
    assert seen.closed == 1


# --- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"category": "memory acces"}, "did you mean memory access?"),
        ({"category": "speed"}, "there are memory access, asynchrony and latency hiding"),
        ({"text": "  "}, "no text"),
        ({"parent": "nothing"}, '"" for the reference'),
        ({"builds_on": "nothing"}, '"" for none'),
    ],
)
def test_an_idea_that_cannot_be(tmp_path: Path, change: dict[str, str], says: str) -> None:
    path = tmp_path / "journal.jsonl"

    async def steps(steered: Agent) -> None:
        with pytest.raises(Refused) as refused:
            await steered.propose(**{"text": "tile it", "category": MEMORY, **change})
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)

    steer(path, steps)
    assert kinds(path) == [RunStarted]


def test_a_kernel_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def steps(steered: Agent) -> None:
        with pytest.raises(Refused, match="there is none yet, propose_idea"):
            steered.submit(idea="x", source=good(1))
        idea = await steered.propose(text="tile it", category=MEMORY)
        other = await steered.propose(text="another", category=MEMORY)
        right = await judged(steered, idea, good(1))
        for change, says in (
            ({"idea": idea.id[:-2]}, f"did you mean {idea.id}"),
            ({"source": " \n"}, "needs source"),
            ({"language": "trtion"}, "did you mean triton"),
            ({"repairs": "x"}, f"there are {right.id}"),
            ({"repairs": right.id}, "nothing to repair"),
            ({"idea": other.id, "repairs": right.id}, "there is none yet"),
        ):
            with pytest.raises(Refused) as refused:
                steered.submit(**{"idea": idea.id, "source": good(2), **change})
            assert says in str(refused.value)
            assert "\n" not in str(refused.value)
        with pytest.raises(Refused, match="unknown variant"):
            await steered.verdict("x")

    steer(path, steps)
    assert kinds(path).count(VariantWritten) == 1


def test_the_same_again_is_what_is_there(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(verdict=by_name)

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        assert await steered.propose(text="tile it", category=MEMORY) is idea
        first = await judged(steered, idea, good(2))
        assert await judged(steered, idea, good(2)) == first
        other = await steered.propose(text="another", category=MEMORY)
        taken_over = await judged(steered, other, good(2))
        assert taken_over.id != first.id and taken_over.evaluation == first.evaluation
        assert steered.session.budget.spent == 1

    steer(tmp_path / "journal.jsonl", steps, evaluator=lambda: evaluator)
    assert evaluator.seen == {kernel("good 2").id: 1}


# --- rounds ---------------------------------------------------------------------------------------


def test_a_child_waits_for_the_round_of_its_parent(tmp_path: Path) -> None:
    path, evaluator = tmp_path / "journal.jsonl", functools.partial(Gated, verdict=by_name)

    async def steps(steered: Agent) -> None:
        gate = steered.session.evaluator.gate  # type: ignore[attr-defined]
        idea = await steered.propose(text="tile it", category=MEMORY)
        slow = steered.submit(idea=idea.id, source=good(2))
        told: list[str] = []
        child = asyncio.create_task(
            steered.propose(text="more", category=MEMORY, parent=slow.id, on_stage=told.append)
        )
        await asyncio.sleep(0.01)
        assert told == ["waiting for the evaluations of round 1"]
        late = steered.submit(idea=idea.id, source=good(3))
        assert steered.stages == {slow.id: "building", late.id: "queued"}
        gate.set()
        assert (await child).round == 2
        assert steered.stages == {}
        assert steered.session.state.tree.variants[late.id].evaluation == correct(3)
        with pytest.raises(Refused, match="round 1, which is closed"):
            steered.submit(idea=idea.id, source=good(4))
        assert await judged(steered, idea, good(3)), "what is there may be read again"

    steer(path, steps, evaluator=evaluator)
    assert kinds(path).index(RoundClosed) > max(
        i for i, kind in enumerate(kinds(path)) if kind is VariantEvaluated
    )


def test_stages_are_told_to_who_waits(tmp_path: Path) -> None:
    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        variant = steered.submit(idea=idea.id, source=good(2))
        told: list[list[str]] = [[], []]
        waiting = [asyncio.create_task(steered.verdict(variant.id, each.append)) for each in told]
        await asyncio.sleep(0.01)
        waiting.pop().cancel()
        steered.session.evaluator.gate.set()  # type: ignore[attr-defined]
        assert (await waiting[0]).evaluation == correct(2)
        assert told == [["building", "measuring"], ["building"]], "the present one first"

    steer(tmp_path / "journal.jsonl", steps, evaluator=functools.partial(Gated, verdict=by_name))


# --- limits and stops -----------------------------------------------------------------------------


def test_no_more_evaluations_than_the_budget_has(tmp_path: Path) -> None:
    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        two = [steered.submit(idea=idea.id, source=good(n)) for n in (2, 3)]
        with pytest.raises(Refused, match="under way"):
            steered.submit(idea=idea.id, source=good(4))
        for variant in two:
            await steered.verdict(variant.id)
        with pytest.raises(Refused, match=r"budget.evaluations is used up; call finish"):
            await steered.propose(text="more", category=MEMORY)
        with pytest.raises(Refused, match=r"budget.evaluations is used up; call finish"):
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
        with pytest.raises(Refused, match=r"budget.rounds is used up"):
            await steered.propose(text="more", category=MEMORY, parent=variant.id)
        assert steered.round == 1, "the round that there may be stays open"
        await judged(steered, idea, good(3))
        clock.now_s += 60
        with pytest.raises(Refused, match=r"budget.seconds is used up"):
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
        with pytest.raises(Refused, match="not evaluated: the budget was used up"):
            await steered.verdict(two.id)
        assert (await steered.finish()).reason == "seconds"

    gated = functools.partial(Gated, verdict=by_name)
    steer(path, steps, seconds=50, clock=clock, outstanding=1, evaluator=gated)


def test_a_stop_is_at_once_and_the_run_goes_on_from_there(tmp_path: Path) -> None:
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
        with pytest.raises(Refused, match="disconnected"):
            await waiting
        with pytest.raises(Refused, match="stopped"):
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
        with pytest.raises(Refused, match="being finished"):
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
        with pytest.raises(Refused, match="on fire"):
            await judged(steered, idea, good(2))
        with pytest.raises(Refused, match="on fire"):
            await steered.propose(text="more", category=MEMORY)
        assert (await steered.finish()).reason.startswith("error: evaluate variant")

    steer(tmp_path / "journal.jsonl", steps, evaluator=lambda: FakeEvaluator(verdict=broken))


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    search(tmp_path / "journal.jsonl", rounds=1)

    async def steps(steered: Agent) -> None:
        raise AssertionError("it should not have started")

    with pytest.raises(ValueError, match="strategy IdeaBranching, not agent"):
        steer(tmp_path / "journal.jsonl", steps)
