"""A search steered from outside: a whole run, what is refused and why, rounds, what is journaled."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import pytest

from evaluators.base.usage_error import UsageError
from evaluators.records.evaluation import Status
from search.engine.agent import Agent, AgentRefused
from search.records.events import (
    BestConfirmed,
    IdeaImplemented,
    IdeaProposed,
    RoundClosed,
    RunFinished,
    RunStarted,
    VariantEvaluated,
    VariantWritten,
)
from search.records.journal import replay
from tests.search.agent_fakes import MEMORY, Gated, OneEntry, by_name, good, judged, kinds, steer
from tests.search.fakes import FakeEvaluator, Recorder, contents, correct, kernel, search, state_of


def test_a_run_from_the_first_idea_to_the_best_kernel(tmp_path: Path) -> None:
    path, library = tmp_path / "journal.jsonl", OneEntry()
    seen = Recorder()

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text=" tile it ", category="Memory Access", expected="2x", model="me")
        assert (idea.text, idea.round, idea.parent, idea.proposer) == ("tile it", 1, "", "agent")
        assert (idea.model, idea.expected, idea.known_ideas) == ("me", "2x", ())
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
        assert (second.round, second.known_ideas) == (2, (idea.id,))
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


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"category": "memory acces"}, "did you mean memory access?"),
        ({"category": "speed"}, "known: memory access, asynchrony and latency hiding"),
        ({"text": "  "}, "no text"),
        ({"parent": "nothing"}, '"" for the reference'),
        ({"builds_on": "nothing"}, '"" for none'),
        ({"text": "\x00\u202e"}, "no text"),
        ({"text": "x" * 200_000}, "the idea has 200,000 characters, more than 2,000; state it in one or two"),
        ({"expected": "x" * 2001}, "the expected effect has 2,001 characters"),
    ],
)
def test_an_invalid_idea(tmp_path: Path, change: dict[str, str], says: str) -> None:
    path = tmp_path / "journal.jsonl"

    async def steps(steered: Agent) -> None:
        with pytest.raises(AgentRefused) as refused:
            await steered.propose(**{"text": "tile it", "category": MEMORY, **change})
        assert says in str(refused.value)
        assert "\n" not in str(refused.value)

    steer(path, steps)
    assert kinds(path) == [RunStarted]


def test_an_invalid_kernel(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"

    async def steps(steered: Agent) -> None:
        with pytest.raises(AgentRefused, match="none exists yet, propose_idea"):
            steered.submit(idea="x", source=good(1))
        idea = await steered.propose(text="tile it", category=MEMORY)
        other = await steered.propose(text="another", category=MEMORY)
        right = await judged(steered, idea, good(1))
        for change, says in (
            ({"idea": idea.id[:-2]}, f"did you mean {idea.id}"),
            ({"source": " \n"}, "needs source"),
            ({"source": f"'{chr(0xDC80)}'"}, "a character that no file can have"),
            (
                {"source": "#" * 600_000},
                "the kernel has 600,000 characters, more than 500,000; submit",
            ),
            ({"language": "trtion"}, "did you mean triton"),
            ({"repairs": "x"}, f"known: {right.id}"),
            ({"repairs": right.id}, "needs no repair"),
            ({"idea": other.id, "repairs": right.id}, "none exists yet"),
        ):
            with pytest.raises(AgentRefused) as refused:
                steered.submit(**{"idea": idea.id, "source": good(2), **change})
            assert says in str(refused.value)
            assert "\n" not in str(refused.value)
        with pytest.raises(AgentRefused, match="unknown variant"):
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
        with pytest.raises(AgentRefused, match="round 1, which is closed"):
            steered.submit(idea=idea.id, source=good(4))
        assert await judged(steered, idea, good(3)), "what is there may be read again"

    steer(path, steps, evaluator=evaluator)
    assert kinds(path).index(RoundClosed) > max(
        i for i, kind in enumerate(kinds(path)) if kind is VariantEvaluated
    )


def test_a_kernel_that_failed_is_no_parent_and_can_still_be_repaired(tmp_path: Path) -> None:
    path, evaluator = tmp_path / "journal.jsonl", functools.partial(Gated, verdict=by_name)

    async def steps(steered: Agent) -> None:
        gate = steered.session.evaluator.gate  # type: ignore[attr-defined]
        idea = await steered.propose(text="tile it", category=MEMORY)
        wrong = steered.submit(idea=idea.id, source=kernel("bad").source)
        child = asyncio.create_task(steered.propose(text="more", category=MEMORY, parent=wrong.id))
        await asyncio.sleep(0.01)
        gate.set()
        refused = f"incorrect; to correct it, submit a kernel for idea {idea.id} with repairs={wrong.id}"
        with pytest.raises(AgentRefused, match=refused):
            await child  # proposed while the verdict was awaited
        with pytest.raises(AgentRefused, match=refused):
            await steered.propose(text="more", category=MEMORY, parent=wrong.id)
        assert steered.round == 1
        mended = await judged(steered, idea, good(2), repairs=wrong.id)
        assert mended.repairs == wrong.id

    steer(path, steps, evaluator=evaluator)


def test_stages_reach_the_waiting_caller(tmp_path: Path) -> None:
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


def test_a_journal_of_another_search_is_refused(tmp_path: Path) -> None:
    search(tmp_path / "journal.jsonl", rounds=1)

    async def steps(steered: Agent) -> None:
        raise AssertionError("it should not have started")

    with pytest.raises(UsageError, match="strategy IdeaBranching, not agent"):
        steer(tmp_path / "journal.jsonl", steps)
