"""The tree of recorded runs as a problem for strategies, without a device or a model.

A strategy that expands a kernel gets the ideas recorded for that kernel, with their recorded variants and
verdicts; nothing else exists. This shows which of two strategies finds the recorded kernels sooner, not what
either would find where the recorded run never looked.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from functools import cache, cached_property

from evaluators.records.problem import Kernel, Problem
from search.protocols import RunContext
from search.recordings.verdicts import RecordedEvaluations, recorded_repair, recording_folder
from search.records.journal import recorded_state
from search.records.run_state import RunState
from search.records.tree import LIBRARY, Expansion, Idea, Outcome, Seed, Tree, Variant


def recorded_problem(
    runs: Sequence[str] | None, name: str = "recorded", path: None = None, device: str = ""
) -> Problem:
    """The problem of the recorded runs. Raises what `RecordedTree` raises."""
    started = _states(runs)[0].started
    assert started is not None
    return started.problem


class RecordedTree:
    """Proposes the ideas recorded for a kernel, each once, in an order set by `seed`. For an idea it gives
    the recorded variants, and for a failed variant the recorded repair. The trees of several `runs` (folders,
    or names of shipped recordings), of one problem and one kind of device, are merged: equal kernels are one
    kernel, with the ideas of all runs. Ideas and kernels without a recorded verdict are left out.

    Raises JournalError or OSError if a folder has no readable journal, ValueError if the runs do not fit
    together or have no ideas.
    """

    def __init__(self, runs: Sequence[str] | None, seed: int) -> None:
        self._runs, self._seed = _states(runs), seed
        self.evaluator = RecordedEvaluations(*self._runs, final_as_measured=True)
        """Returns the recorded verdicts."""
        entries = [entry for run in self._runs if run.started for entry in run.started.entries]
        self.entries: tuple[Seed, ...] = tuple({each.id: each for each in entries}.values())
        """The library kernels that the runs started with."""
        self._run: RunState | None = None

    @cached_property
    def _ideas(self) -> dict[str, dict[str, tuple[Idea, list[Variant]]]]:
        """By kernel id ("" for the reference) and idea id: the ideas for the kernel, with their variants that
        have verdicts."""
        entries = {each.id: each.kernel.id for each in self.entries}
        found: defaultdict[str, dict[str, tuple[Idea, list[Variant]]]] = defaultdict(dict)
        for run in self._runs:
            for idea in run.tree.ideas.values():
                variants = [each for each in run.tree.variants_of(idea.id) if each.written.id in run.verdicts]
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
        """By idea id, its variants including repairs."""
        return {id: each for ideas in self._ideas.values() for id, (_, each) in ideas.items()}

    def refusal(self, problem: Problem) -> str | None:
        """Refuses any problem other than the recorded one."""
        started = self._runs[0].started
        if started is not None and started.problem.source == problem.source:
            return None
        return "proposer=recorded only works with problem=recorded"

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Accepts every kernel."""
        return True

    def exhausted(self, tree: Tree) -> frozenset[str]:
        """The kernels ("" for the reference) for which the tree has all recorded ideas."""
        used = {idea.plan for idea in tree.ideas.values()}
        kernels = {"", *(each.kernel.id for each in self.entries)}
        kernels |= {each.kernel.id for each in tree.variants.values()}
        return frozenset(each for each in kernels if used.issuperset(self._ideas.get(each, ())))

    def begin(self, run: RunContext) -> None:
        """Continues after the ideas that the run already has."""
        self._run = run.state

    async def close(self) -> None:
        """Does nothing; part of the protocol."""

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """The next recorded ideas for the kernel."""
        assert self._run is not None
        used = {idea.plan for idea in self._run.tree.ideas.values()}
        ideas = self._ideas.get(expansion.seed.kernel.id if expansion.seed else "", {})
        left = [idea for id, (idea, _) in ideas.items() if id not in used]
        # The plan names the recorded idea; it is not part of an idea's identity.
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
        """The recorded variants, without repairs."""
        kernels = [variant.written for variant in self._variants[idea.plan] if not variant.repairs]
        random.Random(f"{self._seed}/{idea.plan}").shuffle(kernels)
        for kernel in kernels[:n]:
            if kernel not in written:
                yield kernel

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """The recorded repair of the same kernel."""
        return recorded_repair(self._variants[idea.plan], failed)


def _states(runs: Sequence[str] | None) -> list[RunState]:
    if not runs:
        raise ValueError("proposer=recorded needs recordings; give proposer.runs=[<folder>, …]")
    states = [_state(str(recording_folder(run))) for run in ([runs] if isinstance(runs, str) else runs)]
    for run, state in zip(runs, states, strict=False):
        if state.started is None or not state.tree.ideas:
            raise ValueError(f"proposer.runs: the journal of {run} has no ideas; leave the run out")
        first = states[0].started
        assert first is not None
        if state.started.problem.id != first.problem.id:
            names = f"{first.problem.name} and {state.started.problem.name}"
            raise ValueError(f"proposer.runs: {runs[0]} and {run} have different problems: {names}")
        devices = [each.environment.get("device") for each in (first, state.started)]
        if devices[0] != devices[1]:
            raise ValueError(f"proposer.runs: {runs[0]} was measured on {devices[0]}, {run} on {devices[1]}")
    return states


@cache
def _state(folder: str) -> RunState:
    """Cached per process, because a comparison has hundreds of searches."""
    return recorded_state(folder)
