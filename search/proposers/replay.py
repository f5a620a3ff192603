"""The proposer that has the ideas and kernels of a recorded run: no model, no key, no network.

It reads the journal, so that whoever proposed what is recorded (a model, the playbook, an agent) can be
replayed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

from evaluators.records.problem import Kernel, Problem
from search.protocols import RunContext
from search.records.journal import replay
from search.records.run_state import rebuild
from search.records.tree import LIBRARY, Expansion, Idea, Outcome, Seed, Tree, Variant


class Replay:
    """Each round has the recorded round's ideas, shared among its expansions in their order; each idea its
    recorded variants, and each variant that fails its recorded repair. Where seeds fare differently on
    another machine, ideas meet other parents than they did.

    Raises JournalError or OSError for a folder without a journal that can be read, ValueError for one
    without ideas.
    """

    def __init__(self, run: str | None) -> None:
        if run is None:
            raise ValueError("proposer=replay needs the recording's folder: replay.run=…")
        folder = Path(run)
        state = rebuild(replay(folder / "journal.jsonl"))
        if state.started is None or not state.tree.ideas:
            raise ValueError(f"replay.run={run}: its journal has no ideas")
        self._folder, self._problem, self._tree = folder, state.started.problem, state.tree
        self._rounds: defaultdict[int, list[Idea]] = defaultdict(list)
        for idea in _asked_for(self._tree):
            self._rounds[idea.round].append(idea)
        self._given: dict[int, int] = {}

    def refusal(self, problem: Problem) -> str | None:
        """A line where the recording is of another reference."""
        if problem.source == self._problem.source:
            return None
        return f"{self._folder} is a recording of {self._problem.name}, not of {problem.name}"

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Whatever whoever was recorded built on."""
        return True

    def begin(self, run: RunContext) -> None:
        """Goes on after the ideas that the run has had."""
        for idea in _asked_for(run.state.tree):
            self._given[idea.round] = self._given.get(idea.round, 0) + 1

    async def close(self) -> None:
        """Nothing to let go of."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """The next ideas of the recorded round."""
        start = self._given.get(expansion.round, 0)
        ideas = self._rounds[expansion.round][start : start + expansion.ideas]
        self._given[expansion.round] = start + len(ideas)
        # The plan tells `implement` which idea of the recording it is; it is no part of an idea's identity.
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
        """The recorded variants, without those that were repairs."""
        recorded = [variant.kernel for variant in self._recorded(idea) if not variant.repairs]
        for kernel in recorded[:n]:
            if kernel not in written:
                yield kernel

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """The recorded repair of the same kernel."""
        recorded = self._recorded(idea)
        was = {variant.id for variant in recorded if variant.kernel.id == failed.kernel.id}
        return next((variant.kernel for variant in recorded if variant.repairs in was), None)

    def _recorded(self, idea: Idea) -> tuple[Variant, ...]:
        return self._tree.variants_of(idea.plan)


def _asked_for(tree: Tree) -> list[Idea]:
    """The ideas that a proposer had: the library's kernels are measured in a repetition, too."""
    return [idea for idea in tree.ideas.values() if idea.proposer != LIBRARY]
