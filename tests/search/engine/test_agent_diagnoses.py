"""Diagnoses that an agent asks for: when they are taken, and what is refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from evaluators.records.diagnosis import Diagnosis
from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from search.engine.agent import Agent, AgentRefused
from tests.search.agent_fakes import MEMORY, OneEntry, by_name, good, judged, steer
from tests.search.engine.test_diagnoses import BrokenDiagnoser, FakeDiagnoser
from tests.search.fakes import FakeEvaluator, kernel, state_of


def test_nothing_is_measured_next_to_a_profile(tmp_path: Path) -> None:
    """It waits for what is measured, what comes then waits for it, and two who ask share one profile."""
    seen: list[str] = []

    class Watched(FakeEvaluator):
        async def evaluate(self, problem: Problem, kernel: Kernel, **more: Any) -> Evaluation:
            seen.append("evaluation begins")
            found = await super().evaluate(problem, kernel, **more)
            seen.append("evaluation ends")
            return found

    class Slow(FakeDiagnoser):
        async def diagnose(self, problem: Problem, kernel: Kernel, evaluation: Evaluation) -> Diagnosis:
            seen.append("profile begins")
            await begun.wait()
            seen.append("profile ends")
            return await super().diagnose(problem, kernel, evaluation)

    diagnoser, begun, stages = Slow(), asyncio.Event(), list[str]()

    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        first = await judged(steered, idea, good(2))
        steered.submit(idea=idea.id, source=good(3))
        asking = [asyncio.create_task(steered.diagnosis(first.id, stages.append)) for _ in range(2)]
        while "profile begins" not in seen:
            await asyncio.sleep(0)
        third = steered.submit(idea=idea.id, source=good(4))
        await asyncio.sleep(0.01)
        begun.set()
        one, two = await asyncio.gather(*asking)
        assert one == two == state_of(tmp_path / "journal.jsonl").diagnoses[first.kernel.id]
        await steered.verdict(third.id)
        assert await steered.diagnosis(first.id) == one, "it is taken once"
        assert diagnoser.kernels == [first.kernel.id]

    steer(
        tmp_path / "journal.jsonl",
        steps,
        evaluator=lambda: Watched(verdict=by_name, delay_s=0.01),
        diagnoser=diagnoser,
    )
    measured = ["evaluation begins", "evaluation ends"]
    assert seen == [*measured, *measured, "profile begins", "profile ends", *measured]
    assert stages[0] == "waiting for the evaluations under way" and "profiling" in stages


def test_which_kernels_have_no_diagnosis(tmp_path: Path) -> None:
    async def steps(steered: Agent) -> None:
        idea = await steered.propose(text="tile it", category=MEMORY)
        right = await judged(steered, idea, good(2))
        wrong = await judged(steered, idea, kernel("bad").source)
        for id, says in (
            ("x", "unknown kernel 'x'"),
            (wrong.id, r"not correct for this problem \(incorrect\)"),
            (right.id, "could not be profiled: the kernel could not be profiled"),
        ):
            with pytest.raises(AgentRefused, match=says):
                await steered.diagnosis(id)
        open = steered.submit(idea=idea.id, source=good(3))
        with pytest.raises(AgentRefused, match="has no verdict here yet"):
            await steered.diagnosis(open.id)
        await steered.finish()
        with pytest.raises(AgentRefused, match="the run has ended"):
            await steered.diagnosis(open.id)

    steer(tmp_path / "journal.jsonl", steps, diagnoser=BrokenDiagnoser())


def test_a_kernel_of_the_library_is_profiled_and_a_stop_ends_it(tmp_path: Path) -> None:
    library, diagnoser = OneEntry(), FakeDiagnoser(waits=True)

    async def steps(steered: Agent) -> None:
        asked = asyncio.create_task(steered.diagnosis(library.entry.id))
        while not diagnoser.kernels:
            await asyncio.sleep(0)
        assert (await steered.stop("disconnected")).reason == "disconnected"
        with pytest.raises(AgentRefused, match="stopped"):
            await asked

    steer(tmp_path / "journal.jsonl", steps, library=library, diagnoser=diagnoser)
    assert diagnoser.kernels == [library.entry.kernel.id]
    assert diagnoser.cancelled
