"""What the engine asks of its parts. Concrete ones live in `strategies/`, `proposers/`, `observers/`, ...

Each protocol has one contract test-suite that every implementation runs.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, runtime_checkable

from evaluators.records.evaluation import Evaluation
from evaluators.records.problem import Kernel, Problem
from kernel_library.catalogue.entry import Entry, Hit
from search.models.client import ModelClient
from search.records.events import Event
from search.records.run_state import RunState
from search.records.tree import Expansion, Idea, Outcome, Seed, Tree, Variant


@dataclass(frozen=True, kw_only=True)
class RunContext:
    """What a proposer may know of the run that it works for. `state` is the run's own and grows with it: to
    be read only. `facts` are those of the device and its software; `folder` is the run's."""

    problem: Problem
    folder: Path
    state: RunState
    entries: Sequence[Seed]
    facts: Mapping[str, str]
    model_client: ModelClient
    history: str = "all"
    """How earlier ideas are shown, see `search.records.tree.shown_history`."""


class ProposerFailed(Exception):
    """A proposer that can do nothing more for the run; the message says why in one line."""


@dataclass(frozen=True, kw_only=True)
class View:
    """What a strategy sees when it is asked for the next expansion.

    `tree`: for a `synchronous` strategy the closed rounds, whatever the order in which work finishes;
    otherwise all that there is, with ideas and variants that have no verdict yet. `pending`: the expansions,
    oldest first, of which `tree` does not have all verdicts; a synchronous strategy's are those of the open
    round. `entries`: the library's kernels for the problem, those that the proposer can build on. `round`:
    the number of the open round; `left`: how many of its ideas have not been asked for yet. `exhausted`: ids
    of the kernels, "" for the reference, on which the proposer had no new idea when it was last asked, or
    says that it has none; a synchronous strategy sees those of closed rounds. A strategy passes them over
    while there is another.
    """

    tree: Tree
    entries: Sequence[Seed] = ()
    pending: Sequence[Expansion] = ()
    round: int = 1
    left: int = 1
    exhausted: frozenset[str] = frozenset()


class Strategy(Protocol):
    """The tree-search policy: which seed to expand next, and how widely.

    It is asked whenever there is room for more, until a round's `ideas` have been asked for. `synchronous`:
    it sees closed rounds only, and the next round waits for the last verdict; otherwise it is asked again
    while work is under way.
    """

    ideas: int
    """How many ideas a round has: of a synchronous strategy what it sees next time, otherwise a unit of
    reporting."""
    synchronous: bool

    def ask(self, view: View, rng: random.Random) -> Expansion | None:
        """The next expansion, with at most `view.left` ideas; None where there is nothing to do before
        something under way has ended, or before the round has closed. Pure: equal arguments give equal
        answers, and nothing is changed."""
        ...


def asked_in_a_round(
    strategy: Strategy, view: View, rng_of: Callable[[int], random.Random]
) -> list[Expansion]:
    """All that a strategy asks for in a round of which nothing has ended yet: it is asked until it has
    nothing more, or all ideas of the round. `rng_of`: the generator of each question, counted from 0."""
    chosen: list[Expansion] = []
    while (left := strategy.ideas - sum(each.ideas for each in chosen)) > 0:
        asked = strategy.ask(replace(view, pending=tuple(chosen), left=left), rng_of(len(chosen)))
        if asked is None:
            break
        chosen.append(asked)
    return chosen


class Proposer(Protocol):
    """Has the ideas and writes the code: a model, the playbook, a recording, an agent."""

    def refusal(self, problem: Problem) -> str | None:
        """Why it can do nothing for the problem, in one line that says what would help; None if it can."""
        ...

    def extends(self, problem: Problem, kernel: Kernel) -> bool:
        """Whether it can build on the kernel; others are measured, but no round starts from them."""
        ...

    def begin(self, run: RunContext) -> None:
        """Called once, when a run begins or goes on, before anything is asked."""
        ...

    async def close(self) -> None:
        """Called once, when the run ends, however it ends."""
        ...

    async def propose(
        self, problem: Problem, expansion: Expansion, history: Sequence[Outcome], rng: random.Random
    ) -> list[Idea]:
        """At most `expansion.ideas` new ideas on the seed; fewer, or none, when it has no more.

        An idea's `round` is `expansion.round` and its `parent` the seed's id; the engine sees to both.
        `history` holds every idea before this one, those of the same round (not yet evaluated) last, or
        nothing where the run's history switch is off. Raises BudgetSpent where a limit forbids to ask,
        and ProposerFailed.
        """
        ...

    def implement(
        self,
        problem: Problem,
        idea: Idea,
        parent: Seed | None,
        n: int,
        written: Sequence[Kernel],
        rng: random.Random,
    ) -> AsyncIterator[Kernel]:
        """Kernels that carry out the idea on its parent, each as soon as it is written, so that there are n
        with those already `written` (in a run that was cut off); equal arguments begin with the same ones.
        Raises BudgetSpent where a limit forbids to ask."""
        ...

    async def repair(
        self, problem: Problem, idea: Idea, failed: Variant, rng: random.Random
    ) -> Kernel | None:
        """A variant that failed, mended with the help of its evaluation's log; None where that is not to be
        had. Raises BudgetSpent."""
        ...


@runtime_checkable
class KnowsItsEnd(Protocol):
    """A proposer that can tell, before it is asked, where it has no more ideas."""

    def exhausted(self, tree: Tree) -> frozenset[str]:
        """The kernels, by id, and "" for the reference, on which it has none beside those of the tree."""
        ...


@runtime_checkable
class GivesVerdicts(Protocol):
    """A proposer whose kernels no device evaluates: they are made up, or recorded."""

    evaluator: KernelEvaluator
    entries: Sequence[Seed]
    """What a search begins with, in the library's place."""


class KernelEvaluator(Protocol):
    """Builds, checks and times kernels; `evaluators.scheduler.pool` has the implementation for kernels."""

    async def describe(self, problem: Problem) -> dict[str, str]:
        """Device and software that will measure the problem. Raises WorkerBroken where it cannot be run."""
        ...

    async def evaluate(
        self,
        problem: Problem,
        kernel: Kernel,
        *,
        thorough: bool = False,
        on_stage: Callable[[str], None] | None = None,
    ) -> Evaluation:
        """The verdict on a kernel; never raises for a candidate's failure.

        `thorough` measures longer, in a fresh process with new inputs, and times `torch.compile` too.
        `on_stage` is told `building` and `measuring` when they begin, and the steps of the measurement.
        """
        ...

    async def compare(self, problem: Problem, kernels: Sequence[Kernel]) -> list[Evaluation]:
        """Several different kernels, 2 to 6, measured in alternating blocks of one session: an evaluation for
        each, in the same order. The samples of those that are correct belong together turn by turn. Never
        raises for a candidate's failure; where the session itself failed, that is every kernel's status."""
        ...


class Library(Protocol):
    """Kernels that outlive a run."""

    def lookup(self, problem: Problem, k: int, environment: Mapping[str, str] | None = None) -> list[Hit]:
        """At most k entries that help with the problem, the most helpful first. `environment`: the facts of
        the device that is searched for. Raises OSError when the library cannot be read."""
        ...

    def best(self, problem: Problem, environment: Mapping[str, str]) -> Entry | None:
        """The fastest kernel for this very problem on such a device; None where there is none. Raises OSError
        when the library cannot be read."""
        ...

    def refusal(self, entry: Entry) -> str | None:
        """Why the entry will not be taken in, in one line; None where it will."""
        ...

    def add(self, entry: Entry) -> bool:
        """Whether the entry was taken in. Raises OSError when the library cannot be written."""
        ...


class Observer(Protocol):
    """Watches a run; never steers it."""

    def on_event(self, event: Event) -> None:
        """Called after the journal has the event. What it raises is logged and otherwise ignored."""
        ...

    def close(self) -> None:
        """Called once, when the run ends, however it ends."""
        ...
