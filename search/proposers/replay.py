"""A proposer that repeats the ideas and kernels of a recorded run: no model, no key, no network.

It reads the journal, so it can replay any proposer: a model, the playbook or an agent.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from evaluators.records.problem import Kernel, Problem
from search.protocols import RunContext
from search.recordings.verdicts import recorded_repair
from search.records.journal import recorded_state
from search.records.tree import LIBRARY, Expansion, Idea, Outcome, Seed, Tree, Variant


class Replay:
    """Gives each round the recorded round's ideas, shared among its expansions in order, each idea its
    recorded variants, and each failed variant its recorded repair. If seeds perform differently on another
    machine, ideas may get other parents than recorded.

    Raises JournalError or OSError if the folder has no readable journal, ValueError if the run has no ideas.
    """

    def __init__(self, run: str | None) -> None:
        if run is None:
            raise ValueError("proposer=replay needs a recording; give replay.run=<folder>")
        folder = Path(run)
        state = recorded_state(folder)
        if state.started is None or not state.tree.ideas:
            raise ValueError(f"replay.run={run}: the journal there has no ideas")
        self._folder, self._problem, self._tree = folder, state.started.problem, state.tree
        self._rounds: defaultdict[int, list[Idea]] = defaultdict(list)
        for idea in _asked_for(self._tree):
            self._rounds[idea.round].append(idea)
        self._given: dict[int, int] = {}

    def refusal(self, problem: Problem) -> str | None:
        """Refuses a problem with another reference."""
        if problem.source == self._problem.source:
            return None
        return f"{self._folder} is a recording of {self._problem.name}, not of {problem.name}"

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Accepts every kernel."""
        return True

    def begin(self, run: RunContext) -> None:
        """Continues after the ideas that the run already has."""
        for idea in _asked_for(run.state.tree):
            self._given[idea.round] = self._given.get(idea.round, 0) + 1

    async def close(self) -> None:
        """Does nothing; part of the protocol."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """The next ideas of the recorded round."""
        start = self._given.get(expansion.round, 0)
        ideas = self._rounds[expansion.round][start : start + expansion.ideas]
        self._given[expansion.round] = start + len(ideas)
        # The plan names the recorded idea; it is not part of an idea's identity.
        return [replace(idea, plan=idea.id) for idea in ideas]

    async def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """The recorded variants, without repairs."""
        recorded = [variant.written for variant in self._recorded(idea) if not variant.repairs]
        for kernel in recorded[:n]:
            if kernel not in written:
                yield kernel

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """The recorded repair of the same kernel."""
        return recorded_repair(self._recorded(idea), failed)

    def _recorded(self, idea: Idea) -> tuple[Variant, ...]:
        """None of an idea that another proposer left unwritten in the run."""
        return self._tree.variants_of(idea.plan) if idea.plan in self._tree.ideas else ()


def _asked_for(tree: Tree) -> list[Idea]:
    """The ideas of the proposer, without those that measure library kernels, which the replay measures
    itself."""
    return [idea for idea in tree.ideas.values() if idea.proposer != LIBRARY]
