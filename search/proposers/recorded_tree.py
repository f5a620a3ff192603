"""The tree of recorded runs as a problem of its own: strategies play on it without device and model.

Who expands a kernel gets an idea that was recorded on that kernel, with the variants and verdicts that were
recorded: nothing else exists. So it tells of two strategies which finds the recorded kernels sooner, not what
either would have found where the recorded one never looked.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from pathlib import Path

from evaluators.records.problem import Kernel, Problem
from search.protocols import RunContext
from search.recordings.verdicts import RecordedEvaluations, recording_folder
from search.records.journal import replay
from search.records.run_state import RunState, rebuild
from search.records.tree import LIBRARY, Expansion, Idea, Outcome, Seed, Tree, Variant


def recorded_problem(
    runs: Sequence[str] | None, name: str = "recorded", path: None = None, device: str = ""
) -> Problem:
    """The one that was searched. Raises what `RecordedTree` raises."""
    started = _states(runs)[0].started
    assert started is not None
    return started.problem


class RecordedTree:
    """Has on a kernel the ideas that were recorded on it, each once, and for an idea its variants, in an
    order set by `seed`; a variant that fails has its recorded repair. The trees of several runs, on one
    problem and one kind of device, are one: equal kernels are one kernel, with the ideas of all. What has no
    recorded verdict is left out. `runs`: their folders, or names of shipped recordings.

    Raises JournalError or OSError for a folder without a journal that can be read, ValueError for runs that
    do not go together, or have no ideas.
    """

    def __init__(self, runs: Sequence[str] | None, seed: int) -> None:
        self._runs, self._seed = _states(runs), seed
        self.evaluator = RecordedEvaluations(*self._runs, final_as_measured=True)
        """Where its kernels get their verdicts."""
        entries = [entry for run in self._runs if run.started for entry in run.started.entries]
        self.entries: tuple[Seed, ...] = tuple({each.id: each for each in entries}.values())
        """The library's kernels that the runs began with."""
        self._run: RunState | None = None

    @cached_property
    def _ideas(self) -> dict[str, dict[str, tuple[Idea, list[Variant]]]]:
        """By the kernel that they are on, "" for the reference, and by their ids: ideas with those of their
        variants that have verdicts."""
        entries = {each.id: each.kernel.id for each in self.entries}
        found: defaultdict[str, dict[str, tuple[Idea, list[Variant]]]] = defaultdict(dict)
        for run in self._runs:
            for idea in run.tree.ideas.values():
                variants = [each for each in run.tree.variants_of(idea.id) if each.kernel.id in run.verdicts]
                if variants and idea.proposer != LIBRARY:
                    parent = run.tree.variants.get(idea.parent)
                    kernel = parent.kernel.id if parent else entries.get(idea.parent, "")
                    found[kernel].setdefault(idea.id, (idea, []))[1].extend(variants)
        for kernel, ideas in found.items():
            names = sorted(ideas)
            random.Random(f"{self._seed}/{kernel}").shuffle(names)
            found[kernel] = {name: ideas[name] for name in names}
        return dict(found)

    @cached_property
    def _variants(self) -> dict[str, list[Variant]]:
        """By the id of their idea, with those that are repairs."""
        return {id: each for ideas in self._ideas.values() for id, (_, each) in ideas.items()}

    def refusal(self, problem: Problem) -> str | None:
        """A line for any other problem."""
        started = self._runs[0].started
        if started is not None and started.problem.source == problem.source:
            return None
        return "proposer=recorded goes with problem=recorded alone"

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Whatever whoever was recorded built on."""
        return True

    def exhausted(self, tree: Tree) -> frozenset[str]:
        """The kernels, "" for the reference, of which the tree has all that was recorded on them."""
        used = {idea.plan for idea in tree.ideas.values()}
        kernels = {"", *(each.kernel.id for each in self.entries)}
        kernels |= {each.kernel.id for each in tree.variants.values()}
        return frozenset(each for each in kernels if used.issuperset(self._ideas.get(each, ())))

    def begin(self, run: RunContext) -> None:
        """Goes on after the ideas that the run has had."""
        self._run = run.state

    async def close(self) -> None:
        """Nothing to let go of."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """The next ideas that were recorded on the kernel."""
        assert self._run is not None
        used = {idea.plan for idea in self._run.tree.ideas.values()}
        ideas = self._ideas.get(expansion.seed.kernel.id if expansion.seed else "", {})
        left = [idea for id, (idea, _) in ideas.items() if id not in used]
        # The plan tells which idea of the recording it is; it is no part of an idea's identity.
        return [replace(idea, plan=idea.id) for idea in left[: expansion.ideas]]

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
        kernels = [variant.kernel for variant in self._variants[idea.plan] if not variant.repairs]
        random.Random(f"{self._seed}/{idea.plan}").shuffle(kernels)
        for kernel in kernels[:n]:
            if kernel not in written:
                yield kernel

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """The recorded repair of the same kernel."""
        recorded = self._variants[idea.plan]
        was = {variant.id for variant in recorded if variant.kernel.id == failed.kernel.id}
        return next((variant.kernel for variant in recorded if variant.repairs in was), None)


def _states(runs: Sequence[str] | None) -> list[RunState]:
    if not runs:
        raise ValueError("proposer=recorded needs recordings: proposer.runs=[<folder>, …]")
    states = [_state(str(recording_folder(run))) for run in ([runs] if isinstance(runs, str) else runs)]
    for run, state in zip(runs, states, strict=False):
        if state.started is None or not state.tree.ideas:
            raise ValueError(f"proposer.runs: the journal of {run} has no ideas")
        first = states[0].started
        assert first is not None
        if state.started.problem.id != first.problem.id:
            names = f"{first.problem.name} and {state.started.problem.name}"
            raise ValueError(f"proposer.runs: {runs[0]} and {run} are of different problems, {names}")
        devices = [each.environment.get("device") for each in (first, state.started)]
        if devices[0] != devices[1]:
            raise ValueError(f"proposer.runs: {runs[0]} was measured on {devices[0]}, {run} on {devices[1]}")
    return states


@cache
def _state(folder: str) -> RunState:
    """Read once a process: a comparison has hundreds of searches."""
    return rebuild(replay(Path(folder) / "journal.jsonl"))
