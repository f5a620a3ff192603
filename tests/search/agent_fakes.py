"""Searches that a test steers, with kernels whose names say what their verdict is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from kernel_library.catalogue.entry import Entry, Hit, HitKind, Measurement
from search.engine.agent import Agent
from search.engine.session import Session
from search.records.budget import Budget
from search.records.journal import Journal, replay
from search.records.tree import Category, Idea, Variant
from tests.search.fakes import PROBLEM, FakeEvaluator, correct, failed, kernel

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
        return [Hit(entry=self.entry, kind=HitKind.PROBLEM, why="for this problem", evaluation=found)]

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
    diagnoser = parts.pop("diagnoser", None)
    budget = Budget(**limits)
    return Agent(
        Session(problem=PROBLEM, journal=journal, budget=budget, grace_s=0.0, confirm_s=0.0, **parts),
        diagnoser,
    )


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
